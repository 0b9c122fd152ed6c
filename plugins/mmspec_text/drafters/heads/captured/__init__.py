"""Drafts of heads as compiled functions."""
