"""Draft models of fewer tokens than the target's, or of others."""
