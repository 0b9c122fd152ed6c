"""Decoder layers of heads whose configs say anything, over all rows at once, in float64.

Positions, windows and the kinds of layers are those of transformers' own configuration class for the config's model
type (Llama's where it names none of these heads' own), with all of the config's entries: the class that the authors'
code is given.
"""

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from transformers import LlamaConfig, PreTrainedConfig, Qwen2Config, Qwen3Config
from transformers.activations import ACT2FN
from transformers.models.deepseek_v3.modeling_deepseek_v3 import yarn_apply_mscale
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, rotate_half

CLASSES: dict[object, type[PreTrainedConfig]] = {"qwen2": Qwen2Config, "qwen3": Qwen3Config}
DOWN = "self_attn.kv_a_proj_with_mqa"
ALIASES = {"su": "longrope", "mrope": "default"}
"""What Phi-3's and Qwen2-VL's own classes make of these names."""
LENGTHS = ("max_position_embeddings", "original_max_position_embeddings")
ROTARY = (*LENGTHS, "rope_parameters", "rope_scaling", "rope_theta")
WINDOWS = ("layer_types", "max_window_layers", "sliding_window", "use_sliding_window")
FULL, SLIDING = "full_attention", "sliding_attention"
BIASES = {"attention_bias": "q_proj", "qkv_bias": "q_proj", "mlp_bias": "gate_proj", "bias": "fc", "fusion_bias": "fc"}
"""Entries that say whether linear layers have a bias, and one of these layers."""
Passes = Sequence[int]
"""Rows of successive passes: tables that depend on the length of a text are those of the pass that a row is in."""


class Unlike(Exception):
    """The authors' class does not load such a head, or computes what no reference does."""


class Settled:
    """The settings of decoder layers in a config, with weights `w`, by keys that begin with `prefix` and a number."""

    def __init__(
        self, given: Mapping[str, Any], w: Mapping[str, Tensor], prefix: str = "layers.", base: float | None = None
    ) -> None:
        self.given = {key: value for key, value in given.items() if value is not None}
        self.w, self.prefix, self.base = w, prefix, base
        ends = ".self_attn.o_proj.weight"
        self.layers = sum(key.startswith(prefix) and key.endswith(ends) for key in w)
        self.heads = self._number("num_attention_heads")
        self.latent = f"{prefix}0.{DOWN}.weight" in w
        if self.latent:
            self._latent_sizes()
        else:
            self._sizes()
        counts = {"hidden_size": w[f"{prefix}0.mlp.gate_proj.weight"].shape[1]}
        counts |= {"intermediate_size": w[f"{prefix}0.mlp.gate_proj.weight"].shape[0], "num_hidden_layers": self.layers}
        if wrong := {key for key, value in counts.items() if self.given.get(key, value) != value}:
            raise Unlike(f"the file has other {wrong}")
        for entry, part in BIASES.items():
            there = any(key.endswith(f"{part}.bias") and key.startswith((prefix, "fc.")) for key in w)
            if self.given.get(entry, there) != there:
                raise Unlike(f"{entry} is unlike the file")
        self.eps = float(self.given.get("rms_norm_eps", 1e-6))
        acts = {self.given[name] for name in ("hidden_act", "hidden_activation") if name in self.given} or {"silu"}
        if len(acts) > 1 or self.given.get("partial_rotary_factor", 1) != 1:
            raise Unlike("two activations, or a part of the numbers turns")
        self.act = ACT2FN[acts.pop()]

    def _sizes(self) -> None:
        rows = {part: self.w[f"{self.prefix}0.self_attn.{part}_proj.weight"].shape[0] for part in "qk"}
        self.width = self._number("head_dim", rows["q"] // self.heads)
        self.key_heads = self._number("num_key_value_heads", rows["k"] // max(self.width, 1))
        if (self.heads * self.width, self.key_heads * self.width) != (rows["q"], rows["k"]):
            raise Unlike(f"{self.heads} and {self.key_heads} heads of {self.width}, and the file has {rows}")

    def _latent_sizes(self) -> None:
        """Of DeepSeek's attention: numbers of a head that turn, that do not, and of its values; `width` turn."""
        first = f"{self.prefix}0."
        down, up, out = (self.w[f"{first}{key}.weight"] for key in (DOWN, "self_attn.kv_b_proj", "self_attn.o_proj"))
        self.rank = self._number("kv_lora_rank", up.shape[1])
        self.width = self._number("qk_rope_head_dim", len(down) - self.rank)
        self.value = self._number("v_head_dim", out.shape[1] // self.heads)
        self.still = self._number("qk_nope_head_dim", len(up) // self.heads - self.value)
        made = {DOWN: self.rank + self.width, "self_attn.kv_b_proj": self.heads * (self.still + self.value)}
        low = f"{self.prefix}0.self_attn.q_a_proj.weight" in self.w
        made[f"self_attn.q_{'b_' if low else ''}proj"] = self.heads * (self.still + self.width)
        if low:
            made["self_attn.q_a_proj"] = self._number("q_lora_rank", len(self.w[f"{first}self_attn.q_a_proj.weight"]))
        if wrong := [key for key, rows in made.items() if self.w[f"{self.prefix}0.{key}.weight"].shape[0] != rows]:
            raise Unlike(f"the file has other {wrong}")

    def _number(self, name: str, default: Any = None) -> int:
        value = self.given.get(name, default)
        if type(value) is not int or value < 1:
            raise Unlike(f"{name} is {value!r}")
        return value

    def config(self, **more: Any) -> Any:
        """The configuration class's, of all entries that are about rotary positions."""
        made = CLASSES.get(self.given.get("model_type"), LlamaConfig)
        named = {key: self.given[key] for key in ROTARY if key in self.given} | more
        shape = {"num_attention_heads": self.heads, "head_dim": self.width, "num_hidden_layers": self.layers}
        return made(**named, **shape, hidden_size=self.heads * self.width)

    @property
    def slides(self) -> bool:
        """True if windows are on, where layers have some."""
        return bool(self.given.get("use_sliding_window", self.given.get("model_type") not in CLASSES))

    @cached_property
    def kinds(self) -> list[str]:
        """The reach of each layer."""
        if not self.slides:
            return [FULL] * self.layers
        if self.given.get("use_sliding_window") and "layer_types" not in self.given:
            # Qwen's rule for configs without a list, whatever class they are of.
            first = self.given.get("max_window_layers", Qwen3Config().max_window_layers)
            return [SLIDING if number >= first else FULL for number in range(self.layers)]
        kinds = self.given.get("layer_types") or [FULL] * self.layers
        if not isinstance(kinds, list) or len(kinds) < self.layers or not {*kinds[: self.layers]} <= {FULL, SLIDING}:
            raise Unlike(f"layer_types are {kinds}")
        return kinds[: self.layers]

    @property
    def sliding(self) -> int:
        """Rows of windows."""
        return self._number("sliding_window")

    def window(self, number: int) -> int | None:
        """Rows that a layer attends over; None: all."""
        return None if self.kinds[number] == FULL else self.sliding

    def angles(self, number: int, passes: Passes) -> tuple[Tensor, Tensor]:
        """Cosines and sines of the rows of passes, `[row, width]`, in a layer."""
        more: dict[str, Any] = {} if self.base is None else {"rope_theta": self.given.get("rope_theta", self.base)}
        found = self.given.get("rope_scaling") or self.given.get("rope_parameters")  # as in transformers
        if isinstance(found, Mapping) and any(isinstance(value, Mapping) for value in found.values()):
            found = found[self.kinds[number]]
        if isinstance(found, Mapping):
            more |= {"rope_scaling": None, "rope_parameters": {**found, "rope_type": kind_of(found)}}
            if found.get("partial_rotary_factor", 1) != 1:
                raise Unlike("a part of the numbers turns")
        turn = LlamaRotaryEmbedding(self.config(**more))
        first, parts = 0, []
        for rows in passes:
            parts.append(turn(torch.zeros(1), torch.arange(first, first + rows)[None]))
            first += rows
        cosines, sines = (torch.cat(part, 1)[0].double() for part in zip(*parts, strict=True))
        return cosines, sines

    def linear(self, name: str, x: Tensor) -> Tensor:
        out = x @ self.w[f"{name}.weight"].T
        return out + self.w[f"{name}.bias"] if f"{name}.bias" in self.w else out

    def normed(self, name: str, x: Tensor) -> Tensor:
        return x / torch.sqrt((x * x).mean(-1, keepdim=True) + self.eps) * self.w[f"{name}.weight"]

    def layer(
        self, number: int, residuals: Tensor, xs: Tensor, seen: Tensor, passes: Passes, known: Tensor | None = None
    ) -> Tensor:
        """A layer over rows `[row, hidden]`; for the arguments see `attended`."""
        out = residuals + self.attended(number, xs, seen, passes, known)
        added = self.mlp(number, self.normed(f"{self.prefix}{number}.post_attention_layernorm", out))
        return torch.cat([out] * (added.shape[-1] // out.shape[-1]), -1) + added

    def mlp(self, number: int, x: Tensor) -> Tensor:
        name = f"{self.prefix}{number}.mlp"
        gate, up = self.linear(f"{name}.gate_proj", x), self.linear(f"{name}.up_proj", x)
        return self.linear(f"{name}.down_proj", self.act(gate) * up)

    def attended(self, number: int, xs: Tensor, seen: Tensor, passes: Passes, known: Tensor | None = None) -> Tensor:
        """The attention of rows that read `xs`, and see `known` rows (by default none) and one another.

        `seen` is `[row, known + row]` bool; `passes` are of all of these rows.
        """
        name = f"{self.prefix}{number}"
        all_rows = xs if known is None else torch.cat([known, xs])
        cosines, sines = self.angles(number, passes)

        made = self._latent if self.latent else self._split
        query, key, value, scale = made(name, xs, all_rows, cosines, sines)
        scores = (query @ key.transpose(-1, -2) * scale).masked_fill(~seen, -torch.inf)
        sink = self.w.get(f"{name}.self_attn.attention_sink_bias")
        if sink is not None:
            scores = torch.cat([scores, sink[:, None, None].expand(-1, len(xs), 1)], -1)
        weights = scores.softmax(-1)[..., : len(all_rows)]
        return self.linear(f"{name}.self_attn.o_proj", (weights @ value).transpose(0, 1).flatten(1))

    def _split(self, name: str, xs: Tensor, all_rows: Tensor, cosines: Tensor, sines: Tensor) -> tuple[Any, ...]:
        """Queries, keys and values `[head, row, width]`, and what scores are multiplied with."""

        def split(part: str, rows: Tensor, heads: int) -> Tensor:
            made = self.linear(f"{name}.self_attn.{part}_proj", rows).unflatten(-1, (heads, -1)).transpose(0, 1)
            if f"{name}.self_attn.{part}_norm.weight" in self.w:
                made = self.normed(f"{name}.self_attn.{part}_norm", made)
            return (made if part == "v" else turned(made, cosines, sines)).repeat_interleave(self.heads // heads, 0)

        query = split("q", xs, self.heads)
        return query, split("k", all_rows, self.key_heads), split("v", all_rows, self.key_heads), self.width**-0.5

    def _latent(self, name: str, xs: Tensor, all_rows: Tensor, cosines: Tensor, sines: Tensor) -> tuple[Any, ...]:
        """The same of DeepSeek's attention."""

        def pairs(x: Tensor) -> Tensor:
            return x if self.given.get("rope_interleave") is False else x.unflatten(-1, (-1, 2)).mT.flatten(-2)

        low = f"{name}.self_attn.q_a_proj.weight" in self.w
        asked = xs
        if low:
            asked = self.normed(f"{name}.self_attn.q_a_layernorm", self.linear(f"{name}.self_attn.q_a_proj", xs))
        asked = self.linear(f"{name}.self_attn.q_{'b_' if low else ''}proj", asked)
        still, turns = asked.unflatten(-1, (self.heads, -1)).transpose(0, 1).split([self.still, self.width], -1)
        query = torch.cat([still, turned(pairs(turns), cosines, sines)], -1)
        short, turns = self.linear(f"{name}.{DOWN}", all_rows).split([self.rank, self.width], -1)
        up = self.linear(f"{name}.self_attn.kv_b_proj", self.normed(f"{name}.self_attn.kv_a_layernorm", short))
        still, value = up.unflatten(-1, (self.heads, -1)).transpose(0, 1).split([self.still, self.value], -1)
        key = torch.cat([still, turned(pairs(turns), cosines, sines).expand(self.heads, -1, -1)], -1)
        found = self.given.get("rope_scaling") or self.given.get("rope_parameters") or {}
        found = found.get(self.kinds[0], found)
        return query, key, value, yarn_apply_mscale(found | {"rope_type": kind_of(found)}, query.shape[-1] ** -0.5)

    def causal(self, number: int, rows: int) -> Tensor:
        """The view of rows of a text over one another in a layer, `[row, row]` bool."""
        far = torch.arange(rows)[:, None] - torch.arange(rows)
        window = self.window(number)
        return (far >= 0) & (far < (rows if window is None else window))


def kind_of(rope: Mapping[str, Any]) -> Any:
    """The kind of rotary positions, by transformers' name."""
    kind = rope.get("rope_type", rope.get("type", "default"))
    return ALIASES.get(kind, kind)


def turned(x: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    """Rows `[…, row, width]`, the last ones of those that there are angles of."""
    end = slice(len(cosines) - x.shape[-2], None)
    return x * cosines[end] + rotate_half(x) * sines[end]
