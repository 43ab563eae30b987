"""Texts to token ids and back, as each vocabulary type wants it."""
