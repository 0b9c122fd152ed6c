"""Drafts of a smaller model that drafts with prompt tokens of its own: both parts of parallel prompt decoding.

Chen et al., arXiv 2405.18628, combine their prompt tokens with speculative decoding: they save passes of the draft
model, as a draft model saves passes of the target. Here that is a cascade (`mmspec.core.drafters.cascade`): a decoder
of the draft model, whose drafter is `ppd`, emits the `k` units that the target verifies. Its cache goes on from round
to round; a round begins with a pass over the units that it lacks, behind the last of which stand prompt tokens, so that
the next pass has a draft.
Guarantee: the rule's, as for any draft model: what the draft model emits has its own distribution, whatever drafted it.
Knobs: `k` (units of a draft); `prompts` (a folder that `mmspec train drafter --kind ppd` made for the draft model);
`budget` (candidates and prompt tokens of a pass of the draft model; more are accepted, and each costs).
"""

from dataclasses import dataclass
from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor

from mmspec.core.decoder import Decoder
from mmspec.core.distributions import take_nodes
from mmspec.core.drafters.cascade import CascadeDrafter
from mmspec.core.protocols import Target
from mmspec.core.state import State
from mmspec.core.types import Draft, Prefill
from mmspec.kits.text.small_model import SmallModelOptions, in_target_ids, load_small_model
from mmspec.registry.options import option
from mmspec_text.drafters.ppd import PPD, RATES, PPDOptions
from mmspec_text.head_specs import PPD_MODEL


@dataclass(frozen=True)
class PPDModelOptions(SmallModelOptions):
    """Options of `ppd-model`."""

    prompts: Any = option(None, "the draft model's prompt tokens: a folder or a hub name")
    budget: Annotated[int, Field(ge=2, le=512)] = option(32, "candidates and prompt tokens of a draft model's pass")
    rates: tuple[tuple[Annotated[float, Field(ge=0, le=1)], ...], ...] = option(
        RATES, "chance that the draft model takes the unit of each rank, by depth"
    )


class Resuming:
    """A draft model as the middle of a cascade: a call inside of a round goes on in the cache of the one before.

    `target` is the draft model, with its prompt tokens in its passes or without.
    """

    def __init__(self, target: Any) -> None:
        self.target = target
        self.offers, self.vocab, self.context = target.offers | {"live"}, target.vocab, target.context
        self.verify, self.commit, self.truncate = target.verify, target.commit, target.truncate

    @torch.no_grad()
    def start(self, inputs: State, limit: int, width: int) -> Prefill:
        """Continue after the root of the outer call `inputs`."""
        (prompt, pads), earlier = inputs.as_prompt(), inputs.memory
        if earlier is None:
            mask = (torch.arange(prompt.shape[1], device=pads.device) >= pads[:, None]).long()
            given = {"input_ids": prompt, "attention_mask": mask}
            return self.target.start(given, inputs.limit + limit, width)
        cache, known = earlier.cache, inputs.known - inputs.pads
        have = torch.minimum(_alike(earlier, inputs), known - 1)
        self.target.truncate(cache, have)
        lag = known - 1 - have
        if most := int(lag.max()):
            order = torch.arange(most, device=lag.device)
            place = (inputs.known - 1 - lag)[:, None] + order
            units = take_nodes(inputs.history, place.clamp(max=inputs.history.shape[1] - 1))
            self.target.target.verify(cache, Draft.chain(units[:, 1:]).rooted(units[:, 0], lag - 1))
            self.commit(cache, order[1:].expand(len(lag), -1), lag)
        root = Draft.alone(inputs.root)
        output = self.verify(cache, root)
        self.commit(cache, root.index.parent[:, 1:].expand(inputs.rows, -1), torch.ones_like(known))
        return Prefill(cache, output, prompt, pads)


def _alike(earlier: State, later: State) -> Tensor:
    """The number of units with which both texts begin and which the earlier call's cache holds, `[batch]`."""
    order = torch.arange(earlier.history.shape[1], device=earlier.known.device)
    units = (
        take_nodes(each.history, (each.pads[:, None] + order).clamp(max=each.history.shape[1] - 1))
        for each in (earlier, later)
    )
    one, other = units
    held = earlier.known - earlier.pads - 1
    return ((one == other) & (order < held[:, None])).long().cumprod(1).sum(1)


class Inside(PPD):
    """`ppd` of a draft model inside of a cascade."""

    def wrap(self, target: Target) -> Target:
        assert isinstance(target, Resuming)
        return Resuming(super().wrap(target.target))


class PPDModel(CascadeDrafter):
    """Drafts with a smaller model that drafts with prompt tokens."""

    needs, offers = PPD_MODEL.needs, PPD_MODEL.offers

    def __init__(self, options: PPDModelOptions = PPDModelOptions()) -> None:
        self.options, self._small = options, load_small_model(options, PPD_MODEL.name)
        if options.prompts is None:
            raise ValueError(f"{PPD_MODEL.name} needs the draft model's prompt tokens: prompts=<folder or hub name>")
        inner = Inside(PPDOptions(model=options.prompts, form="sparse", budget=options.budget, rates=options.rates))
        super().__init__(Decoder(Resuming(self._small), inner, k=inner.own_length))

    def bind(self, target: Target) -> None:
        if in_target_ids(self._small, target, self.options) is not self._small:
            raise ValueError(
                "the draft model of ppd-model has another tokenizer than the target: take one of the target's own, or "
                "the method draft-model"
            )
        if "truncate" not in self._small.offers:
            raise ValueError("the draft model of ppd-model has recurrent states, which cannot go back to what was kept")
        super().bind(target)
