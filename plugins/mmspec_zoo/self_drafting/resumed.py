"""Drafts behind an early exit, and verification that goes on from the states which they left there.

A drafting pass runs the layers before the exit over the units that it is fed, and keeps the states behind them; their
keys lie in the call's own cache. Verification runs these layers over what was not fed, which is the last unit of a
draft, and the other layers over all of it: a drafted unit costs every layer once (`forward_remainder` of the released
LayerSkip). A pass from states has another width than a whole one, and rounds otherwise: where all passes of a call have
one shape, all layers run again, as they do in models whose layers hand on more than their states, and where somebody
else verified a part of the draft.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from mmspec.core.drafters.growing import grown
from mmspec.core.drafters.shapes import Chain, Level
from mmspec.core.noise import DraftNoise
from mmspec.core.protocols import Target
from mmspec.core.state import State
from mmspec.core.types import Draft, TargetOutput
from mmspec.hosts.devices import hooks_of
from mmspec.hosts.features import Reading
from mmspec.hosts.target import TransformersTarget
from mmspec.hosts.target_cache import TransformersTargetCache
from mmspec_zoo.self_drafting.shortened import ReadShare, SelfDrafting
from mmspec_zoo.sorted.waiting import given_states, split


@dataclass(frozen=True)
class Left:
    """The states that the drafting passes of a round left."""

    cache: TransformersTargetCache  # the call's
    exit: int  # the number of layers that ran
    states: Tensor  # `[row, node, width]` of the cache's rows: behind each boundary of the reading

    @property
    def fed(self) -> int:
        """Nodes that were fed, the root included."""
        return self.states.shape[1]


class ExitDrafting:
    """Passes of a target up to an exit, of at most `latest` layers, and from there on."""

    def __init__(self, target: Target, method: str, latest: int) -> None:
        own = SelfDrafting(target, method)
        own.sublayers.from_layer(latest)  # refuses what does not exist
        self._plain, self.sublayers, self.layers = own.target, own.sublayers, own.layers
        self._left: Left | None = None
        boundaries = self._plain.boundaries or (latest,)
        self.reading = self._plain.reading if self._plain.boundaries else Reading(self._plain.model_info, boundaries)
        self._width = self._plain.hidden_size
        self._whole = boundaries not in ((latest,), tuple(range(1, latest + 1)))  # a rule reads others
        try:
            split(own.sublayers, [latest])
        except ValueError:
            self._whole = True

    @property
    def target(self) -> TransformersTarget:
        """The target whose verification goes on from what is left."""
        return self._plain.with_resume(self.resumed)

    def draft(
        self,
        exit: int,
        state: State,
        k: int,
        noise: DraftNoise,
        enough: Callable[[Level], bool] | None = None,
    ) -> Draft:
        """A chain of at most `k` units by the first `exit` layers; `enough` says after every one if it is the last."""
        self._left = None
        if k < 1:
            return Draft.empty(state.root)
        feed = partial(self._fed, exit, state)
        return grown(Chain(), state, k, k, noise, feed(Draft.alone(state.root), 0), feed=feed, enough=enough)[0]

    def _fed(self, exit: int, state: State, draft: Draft, first: int) -> TargetOutput:
        share: ReadShare = state.memory
        share.passes += exit / self.layers
        state.report.inner_passes = round(share.passes)
        output, states = self._run(state.cache, draft, first, 0, exit, None)
        before = self._left
        states = states if before is None else torch.cat([before.states, states], 1)
        self._left = Left(state.cache, exit, states)
        return output

    def resumed(self, cache: TransformersTargetCache, draft: Draft) -> TargetOutput | None:
        """The target's pass over a draft, from what is left of it; None where all layers have to run."""
        left, self._left = self._left, None
        if left is None or left.cache is not cache or self._whole or cache.slots.fixed or not draft.index.is_chain:
            return None
        states = left.states[:, : draft.nodes]
        if draft.nodes > left.fed:
            last = self._run(cache, draft, left.fed, 0, left.exit, None, scored=False)[1]
            states = torch.cat([states, last], 1)
        place = self.reading.boundaries.index(left.exit) * self._width
        behind = states[..., place : place + self._width]
        output, later = self._run(cache, draft, 0, left.exit, self.layers, behind)
        if not self._plain.boundaries:
            return output
        known = place + self._width  # boundaries ascend
        hidden = torch.cat([states[..., :known], later[..., known:]], -1)
        return TargetOutput(logits=output.logits, null=output.null, hidden=hidden[: cache.guidance.rows])

    def _run(
        self,
        cache: TransformersTargetCache,
        draft: Draft,
        first: int,
        begin: int,
        end: int,
        states: Tensor | None,
        *,
        scored: bool = True,
    ) -> tuple[TargetOutput, Tensor]:
        """The layers `begin … end - 1` over the nodes from `first` on, given the `states` of these: the scores that the
        model makes of the states behind them, of no node if not `scored`, and what the reading saw.
        """
        guidance = cache.guidance
        guidance.slots.scratch = not draft.index.is_chain
        units, valid = (guidance.physical(each[:, first:]) for each in (draft.units, draft.valid))
        gone = [part for layer in range(self.layers) if not begin <= layer < end for part in (2 * layer, 2 * layer + 1)]
        quiet = torch.no_grad() if hooks_of(self._plain.model) else torch.inference_mode()
        layer = self.sublayers.layers[begin]
        with quiet, self.sublayers.left_out(gone), given_states(layer, states), self.reading as record:
            index = guidance.index(draft.index)
            keep = 0 if scored else units.new_empty(0)
            logits = cache.passes(cache.slots, units, index, first=first, valid=valid, keep=keep, decoding=True)
        given, null = guidance.apart(logits)
        assert record.states is not None
        return TargetOutput(logits=given, null=null), record.states
