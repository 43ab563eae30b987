"""Panels: sixteen weight rows interleaved, to meet many columns of quantized activations.

For each group of values there are sixteen scales and sixteen (negated) minimums beside the panel.
A form of panel is a
file: `pack` makes one, `four_columns` multiplies it with four rows of activations into a tile of 4
x 16 float32.
"""
