"""transformers decoders as targets: cache, masks, attention."""
