"""The blocks that architectures are made of: what they compute, not how or where."""
