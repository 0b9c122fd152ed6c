"""The parts of heads' networks: decoder layers over the slots of a cache, rotary positions, the target's modules.

Names of parameters are the keys of checkpoints.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import LlamaConfig
from transformers.activations import ACT2FN
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, rotate_half

from mmspec.core.types import Part
from mmspec.hosts.attention import packed_attention
from mmspec.hosts.devices import awake
from mmspec_text.drafters.heads.entries import (
    activation,
    agree,
    number,
    part_numbers,
    positive,
    refuse_layers,
    split_heads,
)
from mmspec_text.drafters.heads.positions import layer_kinds, rope
from mmspec_text.drafters.heads.stored import Stored
from mmspec_text.drafters.heads.vocabulary import Trimmed, over_target

THETA = 10000.0
"""The base of rotary positions where a config names none; never the target's."""
BIASES = {"attention_bias": "q_proj", "qkv_bias": "q_proj", "mlp_bias": "gate_proj", "bias": "fc", "fusion_bias": "fc"}
"""Entries that say whether linear layers have a bias, and one of these layers."""


@dataclass(frozen=True)
class BlockSizes:
    """The sizes of a decoder layer."""

    hidden: int  # numbers of a state
    intermediate: int  # numbers inside its MLP
    heads: int  # attention heads
    key_heads: int  # heads of keys and values
    head_dim: int  # numbers of an attention head
    eps: float = 1e-6  # of the norms
    # Rotary parameters as transformers names them
    rope: Mapping[str, Any] = field(default_factory=lambda: {"rope_type": "default", "rope_theta": THETA})
    head_norms: bool = False  # queries and keys are normalised head by head
    biases: frozenset[str] = frozenset()  # linear layers with a bias, by the ends of their names
    activation: str = "silu"  # of the MLP
    context: int | None = None  # positions for which it was trained, if its config says so

    @classmethod
    def of(
        cls,
        stored: Stored,
        prefix: str,
        given: Mapping[str, Any],
        theta: float = THETA,
        turning: int | None = None,
    ) -> Self:
        """The sizes of a stored layer, whose keys begin with `prefix`; refuses layers that are not computed.

        `given` are the entries of its config, flat. `theta` is the base of rotary positions where the config names
        none, and `turning` counts the numbers of an attention head that turn, where `q_proj` and `k_proj` do not show
        them.
        """
        what = stored.what
        refuse_layers(given, what, {})
        intermediate, hidden = stored.matrix(f"{prefix}mlp.gate_proj.weight")
        if turning is None:
            queries, keys = (stored.matrix(f"{prefix}self_attn.{part}_proj.weight")[0] for part in "qk")
            heads, head_dim = split_heads(given, queries, keys, what)
        else:
            heads, head_dim = positive(given, "num_attention_heads", what), turning
            keys = heads * head_dim
        counts = {"hidden_size": hidden, "intermediate_size": intermediate}
        counts |= {"num_key_value_heads": keys // head_dim, "head_dim": head_dim} if turning is None else {}
        agree(given, counts, what)
        own = (f"{prefix.partition('.')[0]}.", "fc.")
        biased = (key.removesuffix(".bias") for key in stored.headers if key.endswith(".bias") and key.startswith(own))
        biases = frozenset(name.rpartition(".")[2] for name in biased)
        agree(given, {entry: part in biases for entry, part in BIASES.items()}, what)
        kinds = layer_kinds(given, max(1, len(part_numbers(stored.headers, "layers."))), what)
        sizes = cls(
            hidden,
            intermediate,
            heads,
            keys // head_dim,
            head_dim,
            number(given, "rms_norm_eps", 1e-6, what),
            rope(given, kinds, theta, what),
            f"{prefix}self_attn.q_norm.weight" in stored.headers,
            biases,
            activation(given, what),
            None if given.get("max_position_embeddings") is None else positive(given, "max_position_embeddings", what),
        )
        try:
            rotary(sizes)
        except (ArithmeticError, AttributeError, KeyError, RuntimeError, TypeError, ValueError) as error:
            raise ValueError(f"{what}: the rotary positions in its config are not computed: {error}") from error
        return sizes


def rotary(sizes: BlockSizes) -> nn.Module:
    """Rotary positions of any length: `(states, positions [batch, row])` to cosines and sines, in float32."""
    heads = {"num_attention_heads": sizes.heads, "head_dim": sizes.head_dim}
    lengths = {} if sizes.context is None else {"max_position_embeddings": sizes.context}
    whole = sizes.heads * sizes.head_dim
    config = LlamaConfig(hidden_size=whole, **heads, **lengths, rope_parameters=dict(sizes.rope))
    with torch.device("cpu"):  # also where the network is built without memory
        return LlamaRotaryEmbedding(config)


def turned(x: Tensor, angles: tuple[Tensor, Tensor]) -> Tensor:
    """Queries or keys `[batch, heads, row, width]` at the positions of `angles`, which `rotary` returned."""
    cosines, sines = (part[:, None] for part in angles)
    return x * cosines + rotate_half(x) * sines


def looked_up(units: Tensor, table: nn.Module, dtype: torch.dtype) -> Tensor:
    """Rows `[batch, row, width]` of a table for units `[batch, row]`, on their device; the table may be elsewhere.

    Heads of the EAGLE family read this of the target: the kits that train them copy its table into one of their own,
    without what its module does behind it.
    """
    with awake(table):
        weight: Any = table.weight
        return F.embedding(units.to(weight.device), weight).to(units.device, dtype)


def embedded(units: Tensor, embedding: nn.Module, dtype: torch.dtype) -> Tensor:
    """The target's embedding of units; some modules scale, as Gemma's do by the root of the width.

    All other heads read this: their authors' code calls the module (Hydra, DFlash), or they are layers of the model. A
    norm inside the module (`embed_norm`) is left out, as in transformers' own loop for DFlash.
    """
    if "embed_norm" in embedding._modules:
        return looked_up(units, embedding, dtype)
    weight: Any = embedding.weight
    out: Tensor = embedding(units if weight.is_meta else units.to(weight.device))  # an offloaded one moves them itself
    return out.to(units.device, dtype)


class Attention(nn.Module):
    """Attention over the slots of a cache.

    `inside` counts the numbers of what it reads. With sinks every head has a logit that takes weight and has no value.
    """

    def __init__(self, a: BlockSizes, inside: int, sinks: bool = False) -> None:
        super().__init__()
        self.head_dim = a.head_dim
        self.q_proj = nn.Linear(inside, a.heads * a.head_dim, bias="q_proj" in a.biases)
        self.k_proj = nn.Linear(inside, a.key_heads * a.head_dim, bias="k_proj" in a.biases)
        self.v_proj = nn.Linear(inside, a.key_heads * a.head_dim, bias="v_proj" in a.biases)
        self.o_proj = nn.Linear(a.heads * a.head_dim, a.hidden, bias="o_proj" in a.biases)
        self.q_norm = nn.RMSNorm(a.head_dim, a.eps) if a.head_norms else None
        self.k_norm = nn.RMSNorm(a.head_dim, a.eps) if a.head_norms else None
        self.attention_sink_bias = nn.Parameter(torch.empty(a.heads)) if sinks else None

    def forward(self, x: Tensor, angles: Any, mask: Tensor | None, kept: Any) -> Tensor:
        query = self._split(self.q_proj(x))
        if self.q_norm is not None:
            query = self.q_norm(query)
        keys, values = self.keep(x, angles, kept)
        out, _ = packed_attention(self, turned(query, angles), keys, values, mask, s_aux=self.attention_sink_bias)
        joined: Tensor = self.o_proj(out.flatten(2))
        return joined

    def keep(self, x: Tensor, angles: Any, kept: Any) -> tuple[Tensor, Tensor]:
        """Put keys and values of rows into the slots that are open; the keys and values of all slots that are seen."""
        key, value = self._split(self.k_proj(x)), self._split(self.v_proj(x))
        if self.k_norm is not None:
            key = self.k_norm(key)
        found: tuple[Tensor, Tensor] = kept.update(turned(key, angles), value)
        return found

    def _split(self, x: Tensor) -> Tensor:
        """`[batch, row, heads · width]` as `[batch, heads, row, width]`."""
        return x.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)


class Mlp(nn.Module):
    """A gated MLP, of one state or of so many `outputs` side by side."""

    def __init__(self, a: BlockSizes, outputs: int = 1) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(a.hidden, a.intermediate, bias="gate_proj" in a.biases)
        self.up_proj = nn.Linear(a.hidden, a.intermediate, bias="up_proj" in a.biases)
        self.down_proj = nn.Linear(a.intermediate, outputs * a.hidden, bias="down_proj" in a.biases)
        self.activation = ACT2FN[a.activation]

    def forward(self, x: Tensor, gating: Tensor | None = None) -> Tensor:
        """The output for `x`, whose gate reads `x` or what is `gating`, of the same width."""
        gate = self.activation(self.gate_proj(x if gating is None else gating))
        out: Tensor = self.down_proj(gate * self.up_proj(x))
        return out


class DecoderLayer(nn.Module):
    """A decoder layer with norms before attention and MLP."""

    def __init__(self, a: BlockSizes, sinks: bool = False) -> None:
        super().__init__()
        self.input_layernorm = nn.RMSNorm(a.hidden, a.eps)
        self.self_attn = Attention(a, a.hidden, sinks)
        self.post_attention_layernorm = nn.RMSNorm(a.hidden, a.eps)
        self.mlp = Mlp(a)

    def forward(self, states: Tensor, angles: Any, mask: Tensor, kept: Any) -> Tensor:
        states = states + self.self_attn(self.input_layernorm(states), angles, mask, kept)
        out: Tensor = states + self.mlp(self.post_attention_layernorm(states))
        return out


class HeadNetwork(nn.Module):
    """A head that uses modules of its target: where it has none of its own, the embedding and the output layer."""

    vocab: int  # number of the target's ids
    ids: Tensor | None  # `[draft vocabulary]` int64, ascending: the target's id of each of the head's; None: the same

    def __init__(self, a: BlockSizes | None = None) -> None:
        super().__init__()
        self.register_buffer("ids", None, persistent=False)
        self.trimmed: Trimmed | None = None  # the rows of the output layer that are used, if not all are
        self._shared: tuple[nn.Module, ...] = ()  # in tuples, so that torch does not adopt them
        self._rotary: tuple[nn.Module, ...] = () if a is None else (rotary(a),)
        self.turns_by_length = a is not None and a.rope["rope_type"] == "dynamic"  # which looks at every pass

    def join(self, embedding: nn.Module, output: nn.Module, device: torch.device, dtype: torch.dtype) -> None:
        """Go where the target is, and use its modules; rotary positions stay in float32."""
        self.to(device, dtype)
        for turn in self._rotary:
            turn.to(device)
        self._shared = embedding, output
        if self.trimmed is not None:
            self.trimmed.take(output)

    def of_target(self, which: int) -> Any:
        """A module of the target: 0 is the embedding, 1 the output layer."""
        assert len(self._shared) > which, "the head is bound to no target"
        return self._shared[which]

    def output(self, own: nn.Module | None = None) -> Any:
        """The output layer: rows that were kept, the head's `own`, or the target's."""
        whole = own if own is not None else self.of_target(1)
        return whole if self.trimmed is None else self.trimmed

    def over_target(self, scored: Tensor) -> Tensor:
        """Logits over the target's ids, -inf where the head has none, of those over the ids that it scores."""
        return over_target(scored, self.ids if self.trimmed is None else self.trimmed.ids, self.vocab)

    def part(self) -> Part | None:
        """The target's ids that the head scores; None: all, or padding behind them."""
        ids = self.ids if self.trimmed is None else self.trimmed.ids
        return None if ids is None else Part(ids, self.vocab)

    @property
    def borrowed(self) -> tuple[nn.Module, ...]:
        """The target's modules that the head may call."""
        return self._shared

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of its weights."""
        return next(self.parameters()).dtype
