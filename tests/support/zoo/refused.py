"""Models that a host must refuse, each with the reason, and a small one of each so that a test can see it happen."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from transformers import AutoModelForSeq2SeqLM, GlmImageForConditionalGeneration, PreTrainedModel

from tests.support.zoo.halves import HALF
from tests.support.zoo.recipe import COMMON, CONTEXT, VOCAB, WINDOW, Recipe
from tests.support.zoo.stateful import INDEXES, RECURRENT

Reason = Literal[
    "recurrent", "alibi", "indexed", "counts-slots", "own-cache", "mixes-tokens", "grid", "blanks", "encoder-decoder"
]

MEANS: Mapping[Reason, str] = {
    "recurrent": "layers fold the text into a state outside transformers' caches, or by operations nobody declares",
    "alibi": "attention measures distance by cache slot, and the nodes of a tree share depths",
    "indexed": "layers keep an index or compressed blocks beside keys and values, which no tree pass can roll back",
    "counts-slots": "positions or windows are counted in cache slots, padding included, whatever position_ids say",
    "own-cache": "no cache of transformers: none at all, or one of its own",
    "mixes-tokens": "what a token becomes depends on the other tokens of its pass, so that no answer is the right one",
    "grid": "codes of a picture lie on a grid, so that a position has axes that do not go on by one",
    "blanks": "its target fills the blanks of a text, and takes no prompt of `generate`",
    "encoder-decoder": "the continuation is a second text with its own start",
}
"""Reason → what stands in the way."""

SAYS: Mapping[Reason, str] = {
    "recurrent": "recurrent|conv state",
    "alibi": "ALiBi",
    "indexed": "keeps more than keys and values",
    "counts-slots": "cannot verify drafts exactly",
    "own-cache": "cannot verify drafts exactly",
    "mixes-tokens": "cannot verify drafts exactly",
    "grid": "own generate puts the next tokens at positions",
    "blanks": "fills the blanks of texts",
    "encoder-decoder": "encoder.decoder",
}
"""Reason → pattern of the host's message."""


@dataclass(frozen=True)
class Refused:
    """A model that must be refused."""

    reason: Reason  # key of `MEANS` and `SAYS`
    recipe: Recipe  # of a small one

    def model(self) -> PreTrainedModel:
        """A small one, of random weights."""
        if self.reason == "encoder-decoder":
            return AutoModelForSeq2SeqLM.from_config(self.recipe.configuration(), trust_remote_code=False).eval()
        if self.reason == "grid":
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(self.recipe.salt)
                return GlmImageForConditionalGeneration(self.recipe.configuration()).eval()
        return self.recipe.model()


WHOLE = {name: value for name, value in HALF.items() if name not in ("is_decoder", "max_target_positions")}


COUNTING: Mapping[str, Mapping[str, Any]] = {
    **{
        name: HALF for name in ("bart", "blenderbot", "blenderbot-small", "marian", "mbart", "mvp", "pegasus", "plbart")
    },
    **{name: HALF for name in ("bigbird_pegasus", "trocr")},
    "roformer": dict(is_decoder=True),
    "gpt_neo": dict(num_layers=2, num_heads=4, attention_types=[[["global", "local"], 1]], window_size=WINDOW),
    "prophetnet": dict(
        is_decoder=True,
        num_decoder_layers=2,
        num_decoder_attention_heads=4,
        num_encoder_layers=2,
        num_encoder_attention_heads=4,
        decoder_ffn_dim=96,
        encoder_ffn_dim=96,
    ),
}
CACHELESS: Mapping[str, Mapping[str, Any]] = {
    "openai-gpt": dict(n_embd=64, n_layer=2, n_head=4, n_positions=CONTEXT),
    "cpmant": dict(
        dim_head=16,
        dim_ff=96,
        prompt_length=8,
        prompt_types=8,
        segment_types=8,
        position_bias_num_buckets=32,
        position_bias_max_distance=64,
    ),
    "reformer": dict(
        is_decoder=True,
        attention_head_size=16,
        attn_layers=["local", "local"],
        axial_pos_shape=[16, 32],
        axial_pos_embds_dim=[32, 32],
        feed_forward_size=96,
        local_attn_chunk_length=32,
    ),
    "xlm": dict(emb_dim=64, n_layers=2, n_heads=4, n_words=131, causal=True),
}
ALIBI: Mapping[str, Mapping[str, Any]] = {
    "bloom": dict(n_layer=2, n_head=4),
    "mpt": dict(d_model=64, n_heads=4, n_layers=2, max_seq_len=CONTEXT),
    "falcon": dict(alibi=True),
}
GRIDS: Mapping[str, Mapping[str, Any]] = {
    "glm_image": dict(
        text_config=dict(
            COMMON,
            vision_vocab_size=VOCAB,
            num_hidden_layers=2,
            rope_parameters=dict(rope_type="default", rope_theta=10000.0, mrope_section=[2, 3, 3]),
        ),
        vision_config=dict(depth=1, hidden_size=32, num_heads=2, intermediate_size=32, image_size=32, patch_size=8),
        vq_config=dict(embed_dim=8, num_embeddings=16, latent_channels=32),
        image_start_token_id=124,
        image_end_token_id=125,
        image_token_id=126,
    )
}
PAIRS: Mapping[str, Mapping[str, Any]] = {
    "t5": dict(d_model=64, d_kv=16, d_ff=96, num_layers=2, num_heads=4),
    "bart": WHOLE,
    "marian": WHOLE,
}


def _all(reason: Reason, configs: Mapping[str, Mapping[str, Any]], suffix: str = "") -> dict[str, Refused]:
    return {name + suffix: Refused(reason, Recipe(name, reason, config)) for name, config in configs.items()}


REFUSED = {
    **_all("recurrent", RECURRENT),
    **_all("indexed", INDEXES),
    **_all("alibi", ALIBI, "-alibi"),
    **_all("counts-slots", COUNTING),
    **_all("own-cache", CACHELESS),
    **_all("grid", GRIDS),
    **_all("blanks", {"xlnet": dict(d_model=64, n_layer=2, n_head=4, d_inner=96)}),
    **_all("encoder-decoder", PAIRS, "-seq2seq"),
    **_all("mixes-tokens", {"doge": dict(is_moe=True, num_experts=16, num_experts_per_tok=4)}, "-moe"),
}
"""Name → model that must be refused."""
