"""Lossy rules. The exact ones are the core's."""
