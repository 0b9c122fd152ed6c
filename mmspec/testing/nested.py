"""A decoder as drafter of a larger one, for the toy target with a history.

A middle model decodes speculatively with a small one; what it emits follows the middle model's law, and that is the law
to report to the large model. What the small model thought of a unit is nobody's business.
"""

from typing import Any

import torch
from torch import Tensor

from mmspec.core.decoder import Decoder
from mmspec.core.drafters.draft_model import DraftModel
from mmspec.core.laws import Categorical
from mmspec.core.noise import DraftNoise
from mmspec.core.philox import PhiloxSource
from mmspec.core.protocols import Target
from mmspec.core.rules.rejection import Rejection
from mmspec.core.state import State
from mmspec.core.types import Draft, Step
from mmspec.testing.history import HistoryTarget


class Nested:
    """Drafts a chain that `middle` decoded with `small` as its draft model.

    Args:
        middle: Target of the inner decoder, drafter of the outer one.
        small: Drafter of the inner decoder.
    """

    offers = frozenset({"chain", "q"})
    needs: frozenset[str] = frozenset()

    def __init__(self, middle: HistoryTarget, small: HistoryTarget) -> None:
        self.middle, self.small = middle, small
        self.inner = Decoder(middle, DraftModel(small), Rejection(), k=2)

    def bind(self, target: Target) -> None:
        pass

    def width(self, k: int) -> int:
        return k

    def start(self, state: State, inputs: Any) -> None:
        pass

    def propose(self, state: State, k: int, noise: DraftNoise) -> Draft:
        known, given = state.known, int(state.known.max())
        index = torch.arange(given) - (given - known)[:, None]
        inputs = (state.history.gather(1, index.clamp(min=0)), state.pads + given - known)
        key = (noise.chain(1, 2).uniform() * 2**32).long()
        units = torch.stack(self.inner.generate(inputs, k, source=PhiloxSource(key)).units)
        return Draft.chain(units, self.law(self.middle, inputs, units))

    def observe(self, state: State, step: Step) -> None:
        pass

    def law(self, model: HistoryTarget, inputs: tuple[Tensor, Tensor], units: Tensor) -> Categorical:
        """Laws of `units [batch, k]` after a prompt under `model`."""
        started = model.start(inputs, units.shape[1], units.shape[1])
        path = Draft.chain(units[:, 1:-1]).rooted(units[:, 0], torch.full((len(units),), units.shape[1]))
        logits = [started.raw.logits] + ([model.verify(started.cache, path).logits] if units.shape[1] > 1 else [])
        return Categorical.of_logits(torch.cat([x for x in logits if x is not None], 1))
