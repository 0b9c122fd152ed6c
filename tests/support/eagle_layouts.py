"""Small heads of random weights in every layout of the EAGLE family, named as the kits that write them name them."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from tests.support.eagle_forward import Flags

HIDDEN, TARGET, VOCAB, PRUNED, HEADS, KEYS, WIDTH, INNER = 24, 64, 131, 48, 3, 1, 8, 40
"""Sizes: of the head and of the Llama of the text tests; the head has another width unless it borrows embeddings."""

EPS = {"rms_norm_eps": 1e-5}


@dataclass(frozen=True)
class Stored:
    """A layout under test."""

    config: Mapping[str, Any]  # its `config.json`
    rename: Callable[[str], str]  # from our names to the layout's
    flags: Flags  # what the forward computes
    shapes: Mapping[str, tuple[int, ...]]  # shapes of its tensors, by our names
    pruned: bool = True  # whether it has a map of ids
    extra: tuple[str, ...] = ()

    def weights(self, seed: int = 0) -> dict[str, Tensor]:
        """Random weights, by our names."""
        g = torch.Generator().manual_seed(seed)
        made = {}
        for key, shape in self.shapes.items():
            drawn = torch.randn(shape, generator=g)
            made[key] = drawn * 2 / shape[-1] ** 0.5 if len(shape) > 1 else 1 + 0.3 * drawn
        if self.pruned:
            ids = torch.arange(PRUNED) * 2 + torch.arange(PRUNED) // 20
            made["d2t"] = ids - torch.arange(PRUNED)
            made["t2d"] = torch.zeros(VOCAB, dtype=torch.bool).index_fill(0, ids, True)
        return made

    def save(self, folder: Path, seed: int = 0, changed: Mapping[str, Any] | None = None, **tensors: Any) -> Path:
        """Write it; entries of the config and tensors (by our names; None leaves one out) may be changed."""
        folder.mkdir(parents=True, exist_ok=True)
        weights = {**self.weights(seed), **tensors}
        kept = {self.rename(key): value.contiguous() for key, value in weights.items() if value is not None}
        kept |= {key: torch.zeros(2) for key in self.extra}
        save_file(kept, folder / "model.safetensors")
        (folder / "config.json").write_text(json.dumps({**self.config, **(changed or {})}))
        return folder


def third(hidden: int, features: int = 3, draft: int = PRUNED, **more: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
    """Shapes of EAGLE-3."""
    return {
        "fc.weight": (hidden, features * TARGET),
        **layer(0, hidden, 2 * hidden),
        "layers.0.input_layernorm.weight": (hidden,),
        "layers.0.hidden_norm.weight": (hidden,),
        "norm.weight": (hidden,),
        "lm_head.weight": (draft, hidden),
        **more,
    }


def layer(number: int, hidden: int, inside: int) -> dict[str, tuple[int, ...]]:
    """Shapes of a layer, but for the norms before attention."""
    name = f"layers.{number}"
    return {
        f"{name}.self_attn.q_proj.weight": (HEADS * WIDTH, inside),
        f"{name}.self_attn.k_proj.weight": (KEYS * WIDTH, inside),
        f"{name}.self_attn.v_proj.weight": (KEYS * WIDTH, inside),
        f"{name}.self_attn.o_proj.weight": (hidden, HEADS * WIDTH),
        f"{name}.post_attention_layernorm.weight": (hidden,),
        f"{name}.mlp.gate_proj.weight": (INNER, hidden),
        f"{name}.mlp.up_proj.weight": (INNER, hidden),
        f"{name}.mlp.down_proj.weight": (hidden, INNER),
    }


def sizes(hidden: int = TARGET, **more: Any) -> dict[str, Any]:
    """Entries of a config of transformers."""
    known = dict(hidden_size=hidden, num_attention_heads=HEADS, num_key_value_heads=KEYS, head_dim=WIDTH)
    return {**known, "vocab_size": VOCAB, "num_hidden_layers": 1, "intermediate_size": INNER, **EPS, **more}


def flags(hidden: int = TARGET, **more: Any) -> Flags:
    return Flags(hidden, HEADS, KEYS, WIDTH, TARGET, eps=1e-5, **more)


def under(prefix: str) -> Callable[[str], str]:
    """`layers.0.` under another name."""
    return lambda key: key.replace("layers.0.", prefix)


def model_first(key: str) -> str:
    """Everything inside `model`, but for the output layer and the maps."""
    return key if key in ("lm_head.weight", "d2t", "t2d") else f"model.{key}"


def speculators_first(key: str) -> str:
    """EAGLE-1 as speculators names it."""
    names = {"fc.": "fusion_fc.", "layers.0.": "transformer.", "norm.": "pre_lm_head_layernorm."}
    names["embedding_norm."] = "embedding_layernorm."
    return next((new + key.removeprefix(old) for old, new in names.items() if key.startswith(old)), key)


def aux_norms(key: str) -> str:
    """Norms of features as SpecForge first named them."""
    for number, place in enumerate(("low", "mid", "high")):
        key = key.replace(f"fc_norm.{number}.", f"aux_norm_{place}.")
    return key.replace("layers.0.", "midlayer.")


FIRST = {"fc.weight": (TARGET, 2 * TARGET), **layer(0, TARGET, TARGET)}
SAMPLED = {
    "fc.fc.weight": FIRST["fc.weight"],
    "fc.fc.bias": (TARGET,),
    "fc.post_attention_layernorm.weight": (TARGET,),
    **{f"fc.mlp.{part}_proj.weight": FIRST[f"layers.0.mlp.{part}_proj.weight"] for part in ("gate", "up", "down")},
}
SPLIT = {**layer(0, TARGET, TARGET), "layers.0.mlp.down_proj.weight": (2 * TARGET, INNER)}
NORMS = {f"fc_norm.{i}.weight": (TARGET,) for i in range(3)}
OWN = {"embed_tokens.weight": (VOCAB, HIDDEN)}
THIRD = {"architectures": ["LlamaForCausalLMEagle3"], "draft_vocab_size": PRUNED}
BIASES = {f"layers.0.self_attn.{part}_proj.bias": (n * WIDTH,) for part, n in (("q", HEADS), ("k", KEYS), ("v", KEYS))}
HEAD_NORMS = {f"layers.0.self_attn.{part}_norm.weight": (WIDTH,) for part in "qk"}
SECOND = {**layer(1, TARGET, TARGET), "layers.1.input_layernorm.weight": (TARGET,)}
ROPE = {"rope_type": "default", "rope_theta": 5000.0}

LAYOUTS: dict[str, Stored] = {
    "eagle-1": Stored(
        sizes(architectures=["LlamaForCausalLM"]),
        lambda key: key,
        flags(third=False),
        {**FIRST, "fc.bias": (TARGET,), "embed_tokens.weight": (VOCAB, TARGET)},
        pruned=False,
    ),
    "eagle-1-without-bias": Stored(sizes(bias=False), lambda key: key, flags(third=False), FIRST, pruned=False),
    "fspad": Stored(
        sizes(architectures=["LlamaForCausalLM"]),
        lambda key: key,
        flags(third=False),
        {**SAMPLED, **SPLIT, "embed_tokens.weight": (VOCAB, TARGET)},
        pruned=False,
    ),
    "fspad-without-sampling": Stored(
        sizes(), lambda key: key, flags(third=False), {"fc.weight": FIRST["fc.weight"], **SPLIT}, pruned=False
    ),
    "fspad-without-alignment": Stored(
        sizes(), lambda key: key, flags(third=False), {**SAMPLED, **layer(0, TARGET, TARGET)}, pruned=False
    ),
    "nemo-1": Stored(
        sizes(),
        lambda key: key,
        flags(third=False, norm_output=True),
        {**FIRST, "layers.0.input_layernorm.weight": (TARGET,), "norm.weight": (TARGET,)},
        pruned=False,
    ),
    "speculators-1": Stored(
        {"speculators_model_type": "eagle", "transformer_layer_config": sizes(), "fusion_bias": True},
        speculators_first,
        flags(third=False),
        {
            **FIRST,
            "fc.bias": (TARGET,),
            "layers.0.input_layernorm.weight": (TARGET,),
            "embedding_norm.weight": (TARGET,),
            "norm.weight": (TARGET,),
        },
        pruned=False,
    ),
    "eagle-3": Stored(
        sizes(architectures=["LlamaForCausalLM"], draft_vocab_size=PRUNED), under("midlayer."), flags(), third(TARGET)
    ),
    "specforge": Stored(
        {**sizes(), **THIRD, "eagle_config": {"eagle_aux_hidden_state_layer_ids": [0, 1, 3]}, "rope_theta": 5000.0},
        under("midlayer."),
        flags(theta=5000.0),
        third(TARGET),
    ),
    "specforge-3.1": Stored(
        {**sizes(), **THIRD, "use_aux_norm": True, "norm_output": True},
        aux_norms,
        flags(fc_norm=True, norm_output=True),
        {**third(TARGET), **NORMS},
    ),
    "speculators": Stored(
        {
            "speculators_model_type": "eagle3",
            "transformer_layer_config": sizes(HIDDEN, rope_parameters=ROPE),
            "draft_vocab_size": PRUNED,
            "target_hidden_size": TARGET,
            "eagle_aux_hidden_state_layer_ids": [1, 2, 4],
        },
        lambda key: key,
        flags(HIDDEN, norm_before_residual=True, theta=5000.0),
        {**third(HIDDEN), **OWN},
        extra=("verifier_norm.weight",),
    ),
    "speculators-norm-before-fc": Stored(
        {
            "speculators_model_type": "eagle3",
            "transformer_layer_config": sizes(),
            "draft_vocab_size": PRUNED,
            "norm_before_residual": False,
            "norm_before_fc": True,
        },
        lambda key: key,
        flags(norm_before_fc=True),
        {**third(TARGET), "input_norm.weight": (3 * TARGET,)},
    ),
    "nemo": Stored(
        {**sizes(HIDDEN), **THIRD, "target_hidden_size": TARGET, "fc_norm": True, "norm_output": True},
        model_first,
        flags(HIDDEN, fc_norm=True, norm_output=True),
        {**third(HIDDEN), **OWN, **NORMS},
    ),
    "modelopt": Stored(
        {**sizes(), **THIRD, "draft_vocab_size": None, "eagle_config": {"use_aux_hidden_state": True}},
        lambda key: key,
        flags(),
        third(TARGET, draft=VOCAB),
        pruned=False,
        extra=("parallel_draft_heads.0.medusa_layers.0.linear.weight",),
    ),
    "modelopt-final-state": Stored(
        {**sizes(), **THIRD, "eagle_config": {"use_aux_hidden_state": False}},
        lambda key: key,
        flags(has_fc=False),
        {key: shape for key, shape in third(TARGET).items() if key not in ("fc.weight", "layers.0.hidden_norm.weight")},
    ),
    "two-layers": Stored(
        {**sizes(), **THIRD, "num_hidden_layers": 2}, under("midlayer."), flags(), {**third(TARGET), **SECOND}
    ),
    "qwen-biases-head-norms": Stored(
        {**sizes(), **THIRD, "architectures": ["Eagle3Qwen3ForCausalLM"]},
        under("midlayer."),
        flags(),
        {**third(TARGET), **BIASES, **HEAD_NORMS},
    ),
    "sliding-four-features": Stored(
        {
            **sizes(),
            **THIRD,
            "layer_types": ["sliding_attention"],
            "sliding_window": 3,
            "eagle_aux_hidden_state_layer_ids": [1, 2, 3, 4],
        },
        under("midlayer."),
        flags(window=3),
        third(TARGET, features=4),
    ),
}
"""Name → layout. Ids of layers are for a target of six."""
