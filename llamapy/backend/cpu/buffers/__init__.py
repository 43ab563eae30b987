"""One file, one extra buffer type: weights laid out anew at load, with their own kernel."""
