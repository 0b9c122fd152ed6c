"""A draft model whose first layers are models of their own: the smallest one that is sure speaks."""
