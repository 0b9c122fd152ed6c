"""Forwards of heads whose configs say anything: as written out elsewhere, with what a config settles taken from it.

Positions, windows and the kinds of layers are those of transformers' own configuration class for the config's model
type (Llama's where it names none of these heads' own), with all of the config's entries: the class that the authors'
code is given. Attention is computed for all rows at once, in float64.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor
from transformers import LlamaConfig, PreTrainedConfig, Qwen2Config, Qwen3Config
from transformers.activations import ACT2FN
from transformers.models.deepseek_v3.modeling_deepseek_v3 import yarn_apply_mscale
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, rotate_half

from tests.support.dflash_forward import BlockFlags, BlockWrittenOut
from tests.support.eagle_forward import Flags, WrittenOut, silu
from tests.support.falcon_forward import FalconForward

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
BASE = 1_000_000.0
"""The base of a DFlash head's rotary positions where its config names none, as vLLM has it."""
Passes = Sequence[int]
"""Rows of successive passes: tables that depend on the length of a text are those of the pass that a row is in."""


class Unlike(Exception):
    """The authors' class does not load such a head, or computes what no reference does."""


class Settled:
    """What a config says of decoder layers with weights `w`, by keys that begin with `prefix` and a number."""

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
        """Whether windows are on, where layers have some."""
        return bool(self.given.get("use_sliding_window", self.given.get("model_type") not in CLASSES))

    @cached_property
    def kinds(self) -> list[str]:
        """What each layer attends over."""
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
        return out + self.mlp(number, self.normed(f"{self.prefix}{number}.post_attention_layernorm", out))

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
        """What rows of a text see of one another in a layer, `[row, row]` bool."""
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


def output_of(w: Mapping[str, Tensor], given: Mapping[str, Any], target: Tensor) -> Tensor:
    """Rows of the output layer: the head's own, its embedding where the config says so, or the target's."""
    tied = w.get("embed_tokens.weight") if given.get("tie_word_embeddings") else None
    own = w.get("lm_head.weight", tied)
    return target.double() if own is None else own


class SettledEagle(WrittenOut):
    """A head of EAGLE, or of P-EAGLE."""

    def __init__(
        self, w: Mapping[str, Tensor], flags: Flags, embedding: Tensor, output: Tensor, given: Mapping[str, Any]
    ) -> None:
        super().__init__(w, flags, embedding, output)
        self.s = Settled(given, self.w)
        named = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")
        said: dict[str, Any] = {name: bool(given[name]) for name in named if given.get(name) is not None}
        if flags.third and given.get("fc_norm") is None and given.get("use_aux_norm") is not None:
            said["fc_norm"] = bool(given["use_aux_norm"])
        if given.get("speculators_model_type") in ("eagle3", "peagle"):  # as vLLM has it
            said.setdefault("norm_before_residual", given["speculators_model_type"] == "eagle3")
        if flags.third:
            said.setdefault("norm_output", False)  # a trial on the first prompt says whether it is
        if "norm.weight" not in self.w:
            said["norm_output"] = False
        if flags.third and given.get("use_aux_hidden_state") is not None:
            said["has_fc"] = bool(given["use_aux_hidden_state"])
        if not flags.third:
            said = {key: value for key, value in said.items() if key == "norm_output"}
        self.f = replace(flags, **said, eps=self.s.eps)
        self.output, self.passes = output_of(self.w, given, output), list[int]()
        self.scale = float(given.get("logit_scale") or 1.0)

    def layer(self, number: int, xs: Sequence[Tensor], residuals: Sequence[Tensor]) -> list[Tensor]:
        rows = len(residuals)
        return list(
            self.s.layer(
                number, torch.stack(list(residuals)), torch.stack(list(xs)), self.s.causal(number, rows), self._of(rows)
            )
        )

    def _of(self, rows: int) -> list[int]:
        """The passes of the first `rows` rows: those known in one, then one by one."""
        return [*self.passes[:1], *[1] * (rows - self.passes[0])]

    def logits(self, fed_back: Tensor) -> Tensor:
        return super().logits(fed_back) * self.scale

    def draft_logits(self, features: Tensor, units: Sequence[int], path: Sequence[int]) -> list[Tensor]:
        self.passes = [len(features)]
        return super().draft_logits(features, units, path)

    def parallel_logits(self, features: Tensor, units: Sequence[int], mask: int, depth: int) -> list[Tensor]:
        self.passes = [len(features) + depth - 1]
        return super().parallel_logits(features, units, mask, depth)


class SettledFalcon(SettledEagle, FalconForward):
    """A head of Falcon."""

    def attended(self, number: int, xs: Sequence[Tensor], us: Sequence[Tensor], seen: Sequence[int]) -> list[Tensor]:
        rows = len(us)
        mask, far = torch.arange(rows) < torch.tensor(seen)[:, None], torch.arange(rows)
        window = self.s.window(number)
        mask &= far[:, None] - far < (rows if window is None else window)
        passes = [self.passes[0], *[self.block] * ((rows - self.passes[0]) // self.block)]
        return list(self.s.layer(number, torch.stack(list(us)), torch.stack(list(xs)), mask, passes))

    def draft_logits(self, features: Tensor, units: Sequence[int], path: Sequence[int]) -> list[Tensor]:
        self.passes = [len(features)]
        return FalconForward.draft_logits(self, features, units, path)


class SettledBlock(BlockWrittenOut):
    """A head of DFlash or DSpark."""

    def __init__(
        self, w: Mapping[str, Tensor], flags: BlockFlags, embedding: Tensor, output: Tensor, given: Mapping[str, Any]
    ) -> None:
        super().__init__(w, flags, embedding, output)
        self.given, self.s = given, Settled(given, self.w, base=BASE)
        sequel = flags.sequel and str(given.get("markov_head_type") or "vanilla").lower()
        scale = float(given.get("logit_scale") or 1) * float(given.get("output_multiplier") or 1)
        named = {"block": given["block_size"], "mask_token": given.get("mask_token_id")}
        self.f = replace(flags, **named, sequel=sequel, scale=scale, eps=self.s.eps, from_root=self._from_root(flags))
        self.f = replace(self.f, sees=(lambda *_: True,) * self.s.layers)
        self.output = output_of(self.w, given, output)
        if given.get("input_embedding_scale"):
            self.embedding = self.embedding * float(given["input_embedding_scale"])

    def _from_root(self, flags: BlockFlags) -> bool:
        for entry in ("sample_from_anchor", "shift_label"):
            if self.given.get(entry) is not None:
                return bool(self.given[entry])
        return (flags.from_root or flags.sequel is not None) and not self.given.get("dspark_bonus_anchor")

    def seen(self, number: int, known: int) -> Tensor:
        """What the rows of a block see of known rows and one another, `[row, known + row]` bool."""
        given, rows = self.given, torch.arange(self.f.block)[:, None] + known
        others, window = torch.arange(known + self.f.block), None
        swa = given.get("use_swa") and SLIDING not in (given.get("layer_types") or ())
        if swa or self.s.kinds[number] == SLIDING:
            window = given.get("swa_window_size") or self.s.sliding
        named = [given[name] for name in ("is_causal", "causal", "causal_head") if given.get(name) is not None]
        slides = self.s.kinds[number] == SLIDING and window is not None
        causal = named[0] if named else slides and not given.get("sliding_window_non_causal")
        seen = torch.ones(self.f.block, known + self.f.block, dtype=torch.bool)
        if window is not None:
            from_root = given.get("speculators_model_type") is not None
            seen = (others >= known - window).expand_as(seen) if from_root else rows - others < window
        return seen & (others <= rows) if causal else seen

    def layer(self, number: int, known: Sequence[Tensor], states: Sequence[Tensor], sees: Any) -> list[Tensor]:
        s, name, x = self.s, f"layers.{number}", torch.stack(list(states))
        seen, passes, before = self.seen(number, len(known)), [len(known) + len(states)], torch.stack(list(known))
        rows = s.normed(f"{name}.input_layernorm", x)
        if f"{name}.mlp_conv.base_kernel" not in self.w:
            return list(s.layer(number, x, rows, seen, passes, before))
        rows, leaving = self.entered(f"{name}.attention_conv", rows)
        x = x + leaving(s.attended(number, rows, seen, passes, before))
        rows, leaving = self.entered(f"{name}.mlp_conv", s.normed(f"{name}.post_attention_layernorm", x))
        return list(x + leaving(s.mlp(number, rows)))

    def entered(self, name: str, rows: Tensor) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
        """What enters a part of a layer of DFlash2, and the convolution of what leaves it."""
        base, taps = self.w[f"{name}.base_kernel"], int(self.given["conv_kernel_size"])
        groups = rows.shape[1] // int(self.given["conv_group_size"])
        kernels = self.s.linear(f"{name}.kernel_projection", rows).chunk(2, -1)

        def convolved(side: int, x: Tensor) -> Tensor:
            own = kernels[side].unflatten(-1, (taps, groups, 1))
            weights = (base[side].unflatten(-1, (groups, -1)) + own).flatten(2)  # [row, tap, hidden]
            later = [torch.cat([torch.zeros_like(x[:tap]), x])[: len(x)] for tap in range(taps)]
            return (weights * torch.stack(later, 1)).sum(1)

        return convolved(0, rows), partial(convolved, 1)

    def behind(self, states: Sequence[Tensor], root: int, path: Sequence[int]) -> list[Tensor]:
        cap, whole = float(self.given.get("final_logit_softcapping") or 0), self.output
        self.output = whole * 0
        terms, self.output = super().behind(states, root, path), whole
        plain = [whole @ state * self.f.scale for state in states]
        plain = [cap * torch.tanh(logits / cap) for logits in plain] if cap else plain
        found = [one + term for one, term in zip(plain, terms, strict=False)]
        if "prefix_gru.weight_hh_l0" in self.w:
            found = self._corrected(found, states, [root, *path])
        if "candidate_selector.successor_codebook" in self.w:
            found = [self._selected(*each) for each in zip(found, states, [root, *path], strict=False)]
        return found

    def _corrected(self, logits: list[Tensor], states: Sequence[Tensor], units: Sequence[int]) -> list[Tensor]:
        """With Domino's correction."""
        ends = {f"weight_{part}": self.w[f"prefix_gru.weight_{part}_l0"] for part in ("ih", "hh")}
        cell = torch.nn.GRUCell(ends["weight_ih"].shape[1], ends["weight_hh"].shape[1], bias=False).double()
        cell.load_state_dict(ends)
        carried, found = torch.zeros(1, cell.hidden_size).double(), []
        for depth, (one, state, unit) in enumerate(zip(logits, states, units, strict=False)):
            carried = cell(self.embedding[unit][None], carried).detach()
            inner = self.linear("embed_proj.0", torch.cat([state, carried[0]]))
            term = self.linear("embed_proj.2", silu(inner))
            found.append(one + term if depth >= int(self.given.get("pure_draft_prefix_len") or 0) else one)
        return found

    def _selected(self, logits: Tensor, state: Tensor, unit: int) -> Tensor:
        """The likeliest candidates of DFlash2's selector, which depend on the unit before."""
        best, ids = logits.topk(min(int(self.given["selector_top_k"]), len(logits)))
        name = "candidate_selector"
        code = self.w[f"{name}.predecessor_codebook"][unit] * self.linear(f"{name}.hidden_projection", state)
        return torch.full_like(logits, -torch.inf).index_copy(
            0, ids, best + self.w[f"{name}.successor_codebook"][ids] @ code
        )
