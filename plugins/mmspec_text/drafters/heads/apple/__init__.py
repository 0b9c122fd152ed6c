"""Masks with a gated LoRA and a sampler head: multi-token prediction as Apple describes it."""
