"""Drafters for text. One drafter, one file, named after it."""
