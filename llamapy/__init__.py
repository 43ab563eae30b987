"""llamapy: llama.cpp's toolkit in Python that a person can read."""

__version__ = "0.1.0"
