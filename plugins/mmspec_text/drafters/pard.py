"""Drafts of all units in one pass of a smaller language model that was trained to fill in masks: PARD.

An et al., arXiv 2504.18583. Behind the root the draft model reads copies of a mask token, at the positions that follow;
it scores the next unit at the root, and the k-th one at the (k - 1)-th mask. So a draft is a product of distributions,
and costs one pass of the draft model whatever its length. The masks' keys are never kept; what was accepted is read in
the next round, in front of the root.
A checkpoint is a causal language model of transformers with the target's tokenizer, whose config names the mask
(`pard_token`). Its vocabulary may be padded to another size. One of PARD-2 (2605.08632) drafts in the mode that does
not depend on the target; the target's states, which the other mode adds to embeddings, are not read.
Guarantee: drafts carry the distribution they are drawn from, or are point masses; exact under the rules that take the
form.
Knobs: `form` is the shape of the draft; a tree costs the draft model no more than a chain, and every node costs the
target. The authors draft twelve units.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor

from mmspec.core.compile.protocols import Capturable
from mmspec.core.drafters.draft_model import CATCH_UP, DraftModelInside, DraftModelMemory, fed_known, lag_of
from mmspec.core.drafters.growing import LiveRows, grown
from mmspec.core.live import Live
from mmspec.core.noise import DraftNoise
from mmspec.core.protocols import Target
from mmspec.core.state import State
from mmspec.core.transfer import moved
from mmspec.core.types import Draft, TargetOutput
from mmspec.hosts.translated import TranslatedTarget
from mmspec.kits.text.small_model import SmallModelDrafter, SmallModelOptions
from mmspec.kits.text.tree_form import TreeForm
from mmspec.registry.options import option
from mmspec.registry.warn import warn
from mmspec_text.drafters.heads.block import Block, Scored, drafted
from mmspec_text.drafters.heads.eagle.checkpoint import mask_token


def is_pard(config: Mapping[str, Any], keys: Iterable[str]) -> bool:
    """True if a stored model is a language model that fills in masks, and no head."""
    names = {key.removeprefix("model.") for key in keys}
    return "pard_token" in config and "embed_tokens.weight" in names and "fc.weight" not in names


@dataclass(frozen=True)
class PardOptions(TreeForm, SmallModelOptions):
    """Options of `pard`."""

    form: Literal["chain", "rerank", "greedy", "heap", "branching", "beam"] = option(
        "chain", "which nodes to draft; rerank, greedy: rules match and relaxed, the others: any"
    )


class PardInside(DraftModelInside):
    """The drafts of one pass inside of captured rounds. Of a draft nothing is kept, and each unit may be lacking."""

    def __init__(self, drafter: "Pard", k: int, state: State) -> None:
        assert isinstance(drafter.model, Capturable)
        super().__init__(drafter.model, k, state)
        self.mask, self.scored = drafter.mask, drafter.scored
        known = self.scored.known
        self.key = self.key, self.mask, self.scored.vocab, None if known is None else known.cpu().numpy().tobytes()

    @property
    def lag(self) -> int:
        return max(self.levels, self.longest) + 1

    @property
    def nodes(self) -> int:
        return self.lag + self.levels

    def propose(self, live: Live, noise: DraftNoise) -> Draft:
        memory, feed, lag = self._memory, partial(self.model.forward, self._held), lag_of(self._memory, live)
        masks = {"masks": self.levels - 1, "mask": self.mask}
        output, _ = fed_known(self.model, memory, live, lag, self.nodes, feed, **masks)
        block = Block(self.scored, behind_root(output, lag, self.levels))
        rows, root = LiveRows(live, self.warp), block.at_root(live.root)
        return grown(memory.shape, rows, self.k, self.levels, noise, root, feed=block.grow)[0]


class Pard(SmallModelDrafter):
    """Drafts with a smaller language model that fills in masks."""

    def __init__(self, options: PardOptions = PardOptions()) -> None:
        super().__init__(options, "pard", options.build_shape())
        self.advice = options.advice
        config = self._small.model.config.to_dict()
        named = f" {options.model!r}" if isinstance(options.model, str) else ""
        self.mask = mask_token(config, f"the draft model{named} of pard")
        if config.get("pard2") or config.get("spd_type") == "pard2":
            warn("this draft model of PARD-2 drafts without its target's states, which is the weaker of its two modes")
        if self.mask >= (self._small.vocab or 0):
            raise ValueError(f"the draft model's mask is the token {self.mask}, and it has {self._small.vocab} ids")

    def bind(self, target: Target) -> None:
        super().bind(target)
        assert target.vocab is not None
        known = None
        if isinstance(self.model, TranslatedTarget):
            ids = self.model.vocabulary.draft_of
            known = ids >= 0
            if not bool((ids == torch.arange(len(ids)))[known].all()):
                raise ValueError(
                    "the draft model of pard has another tokenizer than the target, and its mask is a token of its "
                    "own: take one of the target's tokenizer, or the method draft-model"
                )
        self.model, self.scored = self._small, Scored(target.vocab, known)

    def start(self, state: State, inputs: Any) -> DraftModelMemory:
        if self.scored.known is not None:
            self.scored = replace(self.scored, known=moved(self.scored.known, state.root.device))
        width = max(2 * self.shape.levels(state.budget.k) + 1, CATCH_UP)
        started = self.model.start(inputs, state.limit, width)
        return DraftModelMemory(started.cache, self.shape, width, torch.zeros_like(state.emitted))

    @torch.no_grad()
    def propose(self, state: State, k: int, noise: DraftNoise) -> Draft:
        memory: DraftModelMemory = state.memory
        k, room = self._bounds(state, k)
        levels = self.shape.levels(k)
        if levels < 1:
            return Draft.empty(state.root)
        lag, most = self.catch_up(state, memory, memory.width - levels)
        feed = partial(self._feed, memory)
        output, _ = fed_known(self.model, memory, state, lag, most + levels, feed, masks=levels - 1, mask=self.mask)
        memory.lag = 0
        block = Block(self.scored, behind_root(output, lag, levels))
        draft = drafted(block, self.shape, state, k, noise)
        return draft if room is None else draft.within(room)

    def inside(self, k: int, state: State) -> PardInside:
        return PardInside(self, k, state)

    def fits_inside(self, state: State) -> bool:
        return self._may_be_inside(state)


def behind_root(output: TargetOutput, lag: Tensor, levels: int) -> Tensor:
    """The logits `[batch, level, vocab]` of a pass at the root, which `lag [batch]` units precede, and at the masks."""
    logits = output.take(lag[:, None] + torch.arange(levels, device=lag.device)).logits
    assert logits is not None
    return logits
