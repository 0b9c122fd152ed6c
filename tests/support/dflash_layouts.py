"""Small DFlash heads of random weights in every layout, named as the kits that write them name them."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from tests.support.dflash_forward import BlockFlags, Sees, everything
from tests.support.eagle_layouts import EPS, HEADS, HIDDEN, INNER, KEYS, PRUNED, TARGET, VOCAB, WIDTH, Stored, layer

BLOCK, MASK, RANK = 4, 130, 5


def sizes(hidden: int = TARGET, layers: int = 2, **more: Any) -> dict[str, Any]:
    """Entries of a config of transformers."""
    known = dict(hidden_size=hidden, num_attention_heads=HEADS, num_key_value_heads=KEYS, head_dim=WIDTH)
    known |= dict(num_hidden_layers=layers, vocab_size=VOCAB, intermediate_size=INNER, model_type="qwen3")
    return {**known, **EPS, **more}


def flags(layers: int = 2, sees: tuple[Sees, ...] | None = None, **more: Any) -> BlockFlags:
    return BlockFlags(HEADS, KEYS, WIDTH, BLOCK, MASK, sees or (everything,) * layers, eps=1e-5, **more)


def shapes(hidden: int = TARGET, layers: int = 2, features: int = 2, norms: bool = True) -> dict[str, tuple[int, ...]]:
    """Shapes of a head's tensors."""
    found: dict[str, tuple[int, ...]] = {"fc.weight": (hidden, features * TARGET)}
    found |= {"hidden_norm.weight": (hidden,), "norm.weight": (hidden,)}
    for number in range(layers):
        found |= {**layer(number, hidden, hidden), f"layers.{number}.input_layernorm.weight": (hidden,)}
        if norms:
            found |= {f"layers.{number}.self_attn.{part}_norm.weight": (WIDTH,) for part in "qk"}
    return found


def markov(kind: str, drafted: int, hidden: int = TARGET) -> dict[str, tuple[int, ...]]:
    """Shapes of a Markov head."""
    found = {"markov_head.markov_w1.weight": (VOCAB, RANK), "markov_head.markov_w2.weight": (drafted, RANK)}
    parts = {"gated": ("gate_proj", hidden + RANK, RANK), "rnn": ("joint_proj", 2 * RANK + hidden, 3 * RANK)}
    if kind in parts:
        name, inside, outside = parts[kind]
        found |= {f"markov_head.{name}.weight": (outside, inside), f"markov_head.{name}.bias": (outside,)}
    return found


def own(hidden: int) -> dict[str, tuple[int, ...]]:
    """An embedding, and an output layer over a part of the ids."""
    return {"embed_tokens.weight": (VOCAB, hidden), "lm_head.weight": (PRUNED, hidden)}


def near(window: int) -> Sees:
    """A window that ends at each row, and the whole block."""
    return lambda root, row, other: row - other < window


def near_causal(window: int) -> Sees:
    """A window that ends at each row, and earlier rows of the block."""
    return lambda root, row, other: row - other < window and other <= row


def near_root(window: int, causal: bool) -> Sees:
    """A window that ends at the root."""
    return lambda root, row, other: other >= root - window and (other <= row or not causal)


def muse(key: str) -> str:
    """The names of features' projection and norm in an encoder."""
    return {"fc.weight": "encoder.fc.weight", "hidden_norm.weight": "encoder.output_norm_enc.weight"}.get(key, key)


def gelu(x: Tensor) -> Tensor:
    return x * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (x + 0.044715 * x**3))) / 2


def same(key: str) -> str:
    return key


def spec(kind: str, hidden: int = TARGET, layer_config: Mapping[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    """A config of speculators."""
    return {
        "speculators_model_type": kind,
        "transformer_layer_config": sizes(hidden, rope_parameters={"rope_theta": 5000.0}, **(layer_config or {})),
        "draft_vocab_size": PRUNED,
        "block_size": BLOCK,
        "mask_token_id": MASK,
        "target_hidden_size": TARGET,
        "aux_hidden_state_layer_ids": [2, 4],
        **more,
    }


def zlab(inner: Mapping[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    """A config of the authors' code."""
    inside = {"mask_token_id": MASK, "target_layer_ids": [1, 3], **(inner or {})}
    return {**sizes(architectures=["DFlashDraftModel"]), "block_size": BLOCK, "dflash_config": inside, **more}


BIASES = {f"layers.{i}.self_attn.{part}_proj.bias": (n * WIDTH,) for i in (0, 1) for part, n in (("q", 3), ("k", 1))}
SINKS = {f"layers.{i}.self_attn.attention_sink_bias": (HEADS,) for i in (0, 1)}
TYPES = {"layer_types": ["full_attention", "sliding_attention"], "sliding_window": 3, "use_sliding_window": True}


def confidence(width: int) -> dict[str, tuple[int, ...]]:
    """A confidence head that reads so many numbers."""
    return {"confidence_head.proj.weight": (1, width), "confidence_head.proj.bias": (1,)}


def stored(
    config: Mapping[str, Any],
    flags: BlockFlags,
    found: Mapping[str, tuple[int, ...]],
    rename: Callable[[str], str] = same,
    pruned: bool = False,
    extra: tuple[str, ...] = (),
) -> Stored:
    return Stored(config, rename, flags, found, pruned, extra)  # type: ignore[arg-type]


LAYOUTS: dict[str, Stored] = {
    "dflash": stored(zlab(rope_theta=5000.0), flags(theta=5000.0), shapes()),
    "dflash-inner-settings": stored(
        {**zlab({"block_size": BLOCK}), "block_size": None, "logit_scale": 0.5}, flags(scale=0.5), shapes()
    ),
    "dflash-windows": stored(zlab(**TYPES), flags(sees=(everything, near_causal(3))), shapes()),
    "dflash-windows-named": stored(
        zlab({"use_swa": True, "swa_window_size": 3, "causal": False}), flags(sees=(near(3), near(3))), shapes()
    ),
    "dflash-mask-and-sinks": stored(
        zlab({"mask_token_id": None}), flags(), {**shapes(), **BIASES, **SINKS, "mask_embedding": (TARGET,)}
    ),
    "dflash-encoder": stored(zlab(), flags(), shapes(norms=False), rename=muse),
    "dflash-shifted": stored(zlab({"shift_label": True, "projector_type": None}), flags(from_root=True), shapes()),
    "dspark-without-heads": stored(  # as DeepSpec's own configs are: a DSpark model without its two heads
        {
            **sizes(architectures=["Qwen3DSparkModel"], markov_rank=0, enable_confidence_head=False),
            "block_size": BLOCK,
            "mask_token_id": MASK,
            "target_layer_ids": [1, 3],
        },
        flags(from_root=True),
        shapes(),
    ),
    "dflash-gelu": stored({**zlab(), "hidden_activation": "gelu_pytorch_tanh"}, flags(activation=gelu), shapes()),
    "dspark": stored(
        {**zlab(), "markov_rank": RANK, "markov_head_type": "vanilla"},
        flags(from_root=True, sequel="vanilla"),
        {**shapes(), **markov("vanilla", VOCAB), **confidence(TARGET + RANK)},
    ),
    "dspark-rnn": stored(
        {**sizes(), "block_size": BLOCK, "mask_token_id": MASK, "target_layer_ids": [1, 3], "markov_head_type": "rnn"},
        flags(from_root=True, sequel="rnn"),
        {**shapes(), **markov("rnn", VOCAB)},
    ),
    "speculators": stored(spec("dflash", HIDDEN), flags(theta=5000.0), {**shapes(HIDDEN), **own(HIDDEN)}, pruned=True),
    "speculators-windows": stored(
        spec("dflash", HIDDEN, TYPES),
        flags(sees=(everything, near_root(3, causal=True)), theta=5000.0),
        {**shapes(HIDDEN), **own(HIDDEN)},
        pruned=True,
        extra=("verifier_norm.weight",),
    ),
    "speculators-windows-non-causal": stored(
        spec("dflash", HIDDEN, TYPES, sliding_window_non_causal=True),
        flags(sees=(everything, near_root(3, causal=False)), theta=5000.0),
        {**shapes(HIDDEN), **own(HIDDEN)},
        pruned=True,
    ),
    "speculators-dspark": stored(
        spec("dspark", HIDDEN, markov_rank=RANK, markov_head_type="gated"),
        flags(from_root=True, sequel="gated", theta=5000.0),
        {**shapes(HIDDEN), **own(HIDDEN), **markov("gated", PRUNED, HIDDEN), **confidence(HIDDEN)},
        pruned=True,
    ),
    "speculators-dspark-from-masks": stored(
        spec("dspark", HIDDEN, markov_rank=RANK, sample_from_anchor=False),
        flags(sequel="vanilla", theta=5000.0),
        {**shapes(HIDDEN), **own(HIDDEN), **markov("vanilla", PRUNED, HIDDEN)},
        pruned=True,
    ),
}
"""Name → layout. Ids of layers are for a target of six: the boundaries 2 and 4."""


def head_ids(layout: Stored) -> Tensor:
    """The target's id of each of a head's."""
    return torch.arange(PRUNED) + layout.weights()["d2t"] if layout.pruned else torch.arange(VOCAB)
