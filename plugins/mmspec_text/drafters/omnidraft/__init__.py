"""A draft model with another tokenizer, whose pieces are joined to the target's tokens as it learns them."""
