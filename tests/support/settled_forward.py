"""Forwards of heads whose configs say anything: as written out elsewhere, with what a config settles taken from it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from tests.support.dflash_forward import BlockFlags, BlockWrittenOut
from tests.support.eagle_forward import Flags, WrittenOut, silu
from tests.support.falcon_forward import FalconForward
from tests.support.settled_layers import SLIDING, Settled

BASE = 1_000_000.0
"""The base of a DFlash head's rotary positions where its config names none, as vLLM has it."""


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
        if not flags.third and not {"norm.weight", "embedding_norm.weight"} & {*self.w}:
            # A file without a last norm is one of EAGLE-1, whose first layer has no norm, whatever the file carries.
            self.w = {key: value for key, value in self.w.items() if key != "layers.0.input_layernorm.weight"}
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

    def activation(self, x: Tensor) -> Tensor:
        return self.s.act(x)

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
        """The view of the rows of a block over known rows and one another, `[row, known + row]` bool."""
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
        """The input of a part of a layer of DFlash2, and the convolution of what leaves it."""
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
