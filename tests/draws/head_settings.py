"""Values of entries of a head's config: rotary positions in every form, windows by layer, and others by their type."""

import random
from typing import Any

from transformers.activations import ACT2FN

FULL, SLIDING = "full_attention", "sliding_attention"
LENGTH = "original_max_position_embeddings"
FACTORS = [1.0, 1.2, 1.5, 2.0]
"""One for each pair of an attention head of eight numbers."""


def rope(dice: random.Random) -> dict[str, Any]:
    """Parameters of one kind of rotary positions, with and without what it may leave out."""
    kind = dice.choice(("default", "linear", "dynamic", "llama3", "longrope", "su", "yarn", "yarn", "mrope", "odd"))
    found: dict[str, Any] = {dice.choice(("rope_type", "type")): kind}
    if kind in ("linear", "dynamic", "yarn", "llama3", "odd") or (kind in ("longrope", "su") and dice.random() < 0.5):
        found["factor"] = dice.choice((2.0, 4.0, 8))
    if kind in ("yarn", "longrope", "su", "llama3") and dice.random() < 0.6:
        found[LENGTH] = dice.choice((4, 8, 64))
    if kind == "llama3":
        found |= {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
    if kind in ("longrope", "su"):
        found |= {"short_factor": FACTORS, "long_factor": [4 * factor for factor in FACTORS]}
    if kind == "yarn":
        more = {"beta_fast": 8, "beta_slow": 2, "mscale": 0.8, "mscale_all_dim": 0.5, "truncate": False}
        found |= dict(dice.sample(sorted(more.items()), dice.randrange(3)))
    if kind in ("yarn", "longrope", "su") and dice.random() < 0.2:
        found["attention_factor"] = 1.3
    if kind == "mrope":
        found["mrope_section"] = [1, 1, 2]
    if dice.random() < 0.4:
        found["rope_theta"] = dice.choice((100.0, 500000))
    if dice.random() < 0.1:
        found["partial_rotary_factor"] = dice.choice((0.5, 1.0))
    return found


def rotary(dice: random.Random, layers: int) -> dict[str, Any]:
    """Entries of rotary positions: parameters, perhaps by kind of layer, and what may stand beside them."""
    found: dict[str, Any] = {}
    entry = dice.choice(("rope_scaling", "rope_parameters"))
    found[entry] = rope(dice)
    if dice.random() < 0.25:
        found[entry] = {FULL: rope(dice), SLIDING: rope(dice)}
        if dice.random() < 0.8:
            found["layer_types"] = [dice.choice((FULL, FULL, SLIDING)) for _ in range(layers)]
            found["sliding_window"] = dice.choice((2, 4))
    if dice.random() < 0.6:
        found["max_position_embeddings"] = dice.choice((6, 24, 4096))
    if dice.random() < 0.3:
        found["rope_theta"] = dice.choice((50.0, 10000.0))
    if dice.random() < 0.2:
        found[LENGTH] = dice.choice((4, 8))
    if dice.random() < 0.1:
        found["partial_rotary_factor"] = dice.choice((0.5, 1.0))
    return found


def windows(dice: random.Random, layers: int) -> dict[str, Any]:
    """Entries of windows."""
    found: dict[str, Any] = {"sliding_window": dice.choice((2, 3, 6))}
    if dice.random() < 0.7:
        longer = dice.choice((0, 0, 0, 1, -1))
        found["layer_types"] = [dice.choice((FULL, SLIDING)) for _ in range(layers + longer)]
    if dice.random() < 0.6:
        found["use_sliding_window"] = dice.choice((True, False))
    if dice.random() < 0.3:
        found["max_window_layers"] = dice.choice((0, 1, 4))
    if dice.random() < 0.2:
        found["model_type"] = dice.choice(("llama", "qwen3", "qwen2"))
    return found


CHOICES: dict[str, tuple[Any, ...]] = {
    "draft_vocab_size": (131, 47, 48, None),
    "final_logit_softcapping": (10.0, 30.0, None),  # smaller ones make equals of the largest logits
    "hidden_act": ("gelu", "relu", "gelu_pytorch_tanh", "silu", "swiglu", "geglu_of_tomorrow"),
    "hidden_activation": ("gelu", "silu"),
    "markov_head_type": ("vanilla", "gated", "rnn", "VANILLA", "odd"),
    "num_attention_heads": (1, 2, 3, 4, 6),
    "rms_norm_eps": (0.5, 1e-3, None),
    "partial_rotary_factor": (0.5, 1.0),
}
TRUTHS = ("norm_", "use_", "tie_", "is_", "causal", "shift_", "sample_", "fc_norm", "_bias", "scale_input")
"""Parts of names of entries that are yes or no."""


def values(name: str, old: Any, dice: random.Random) -> Any:
    """Another value of an entry whose value is `old`; None takes it out."""
    if name in CHOICES:
        return dice.choice(CHOICES[name])
    if dice.random() < 0.1:
        return None
    if isinstance(old, bool):
        return not old
    if old is None and (name.startswith(TRUTHS) or name.endswith("_bias")):
        return dice.choice((True, False))
    if isinstance(old, int):
        return dice.choice((1, 2, 3, old + 1, 2 * old, max(old - 1, 1)))
    if isinstance(old, float) or old is None:
        return dice.choice((0.25, 0.5, 2.0, 3, (old or 1.0) * 3))
    if isinstance(old, str):
        return dice.choice(sorted(ACT2FN)) if old in ACT2FN else dice.choice(("odd", old.upper()))
    if isinstance(old, list):
        return dice.choice((old[::-1], old[1:], [*old, *old[:1]]))
    return old
