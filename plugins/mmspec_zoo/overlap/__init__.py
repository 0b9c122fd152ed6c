"""Drafting while the target verifies: what is asked of a draft model, what it answers, and who runs it when."""
