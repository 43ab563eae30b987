"""One file is one op: its shape rule and its numpy meaning."""
