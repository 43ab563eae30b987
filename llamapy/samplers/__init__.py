"""Samplers: from logits to a token. ONE FILE = ONE SAMPLER; `chain` puts them together."""
