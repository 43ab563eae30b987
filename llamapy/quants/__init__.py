"""One file, one quantization type: layout, numpy meaning, quantizer, compiled unpack."""
