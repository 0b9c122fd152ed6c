"""Targets for text that are no causal decoders."""
