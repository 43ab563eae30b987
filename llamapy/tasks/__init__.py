"""Whole jobs over models and files, without printing: quantize, measure, split."""
