"""Decoders of pairs, run alone: they know positions, and in transformers a padded row of theirs counts its padding.

So such a row has another text in a batch of transformers than alone; ours has the text that it has alone.
"""

from tests.support.zoo.recipe import CONTEXT, Recipe

HALF = dict(
    is_decoder=True,
    d_model=64,
    decoder_layers=2,
    decoder_attention_heads=4,
    decoder_ffn_dim=96,
    encoder_layers=2,
    encoder_attention_heads=4,
    encoder_ffn_dim=96,
    max_target_positions=CONTEXT,
)
"""The decoder of an encoder–decoder pair."""

SIGHT = dict(
    hidden_size=32, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2, image_size=16, patch_size=8
)

HALVES = {
    "whisper": Recipe("whisper", "counts-padding", HALF, gain=3.0, embedding=4.0, alone=True),
    "git": Recipe("git", "counts-padding", dict(vision_config=SIGHT), gain=3.0, embedding=4.0, alone=True),
}
"""Name → recipe."""
