"""Models at work: loading, contexts, memory, generation, state."""
