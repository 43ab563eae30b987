"""From Hugging Face folders to GGUF."""
