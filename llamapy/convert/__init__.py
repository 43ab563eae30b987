"""From a Hugging Face folder to what a GGUF file holds. Writes nothing."""
