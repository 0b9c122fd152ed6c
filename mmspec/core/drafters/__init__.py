"""Drafters that need no modality: none, a smaller target, the target's own last pass, plain Python."""
