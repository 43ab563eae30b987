"""What a context remembers: caches of attention and states of recurrent layers."""
