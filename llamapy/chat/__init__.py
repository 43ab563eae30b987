"""Conversations as text: the templates that model files bring."""
