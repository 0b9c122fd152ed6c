"""Speculative Jacobi decoding: the target's own last pass drafts a window of units, refined until they are accepted.

Speculative Jacobi decoding (arXiv 2410.01699) and its maximal-coupling form (2510.24211). The last round's draws at the
window's nodes become the next draft, with the distributions that they were drawn from; new slots of the window are
filled by an initialisation. Training-free, for discrete and continuous units alike. The rule decides how a redraw is
coupled with the draft (`match`: shared noise; `rejection`: maximal coupling or reflection).
Knobs: the window (`k`): longer windows accept more per pass and cost more per pass; `independent`: the next draft is
drawn anew from the last pass's distributions, as first published, which accepts less.
"""

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from mmspec.core.distributions import Distribution, Mixed, PointMass, take_nodes, where_nodes
from mmspec.core.noise import DraftNoise, Noise, Substream
from mmspec.core.protocols import Target
from mmspec.core.state import State
from mmspec.core.types import Draft, Step


@dataclass(frozen=True)
class Window:
    """Slots `0 … k - 1` of a row stand for its next `k` units."""

    units: Tensor  # `[batch, k, *unit]`
    distribution: Distribution | None  # what the units were drawn from, `[batch, k]`; None before the first pass
    drawn: Tensor  # `[batch, k]` bool: False in slots that an initialisation must fill
    # The distributions of the units emitted last, `[batch, reach]`, the root's being the last one, if the
    # initialisation has a `reach`; missing earlier ones are the first unit's
    past: Distribution | None = None


class Initialisation(Protocol):
    """Fills the new slots of a window."""

    @property
    def reach(self) -> int:
        """Number of units emitted last whose distributions it needs (`window.past`); mostly 0."""
        ...

    def fill(self, state: State, window: Window, noise: Noise) -> tuple[Tensor, Distribution | None]:
        """Units for all slots, `[batch, k, *unit]` (only those of new slots are read), and their distribution.

        The distribution is None for point masses; else the units were drawn from it with `noise [batch, k]`.
        """
        ...


class Jacobi:
    """A window over the next units, refined in place.

    Args:
        independent: Draw the units that stay in the window anew, with independent noise.
    """

    offers = frozenset({"chain", "window", "q"})
    needs = frozenset({"redraw"})

    def __init__(self, initialisation: Initialisation, independent: bool = False) -> None:
        self.initialisation = initialisation
        self.independent = independent

    def bind(self, target: Target) -> None:
        pass

    def width(self, k: int) -> int:
        return k

    def start(self, state: State, inputs: Any) -> Window | None:
        past = None if state.step is None else self._past(None, state.step)
        return None if past is None else Window(state.root[:, None][:, :0], None, state.done[:, None][:, :0], past)

    def propose(self, state: State, k: int, noise: DraftNoise) -> Draft:
        window = self._resized(state, k)
        units, distribution = self.initialisation.fill(state, window, noise.chain(1, k))
        units = where_nodes(window.drawn, window.units, units)
        if window.distribution is None:
            return Draft.chain(units, distribution)
        if distribution is None:
            return Draft.chain(units, Mixed(window.distribution, window.drawn, units))
        return Draft.chain(units, _either(window.drawn, window.distribution, distribution))

    def observe(self, state: State, step: Step) -> None:
        """Slot j of the next window is the unit drawn at node `count + j`: both have the same position."""
        nodes = step.draft.nodes
        source = step.count[:, None] + torch.arange(nodes - 1, device=step.count.device)
        drawn = source < nodes
        distribution = step.scores.distribution.take(source.clamp(max=nodes - 1))
        if self.independent:
            # Substream DRAFT of the next round: its rule draws coins and residuals in other substreams.
            draws = distribution.draw(state.source.fresh(state.emitted, 1, nodes - 1).substream(Substream.DRAFT))
        else:
            draws = take_nodes(step.verdict.drawn, source.clamp(max=nodes - 1))
        past = self._past(None if state.memory is None else state.memory.past, step)
        state.memory = Window(distribution.units(draws), distribution.with_draws(draws), drawn, past)

    def _past(self, before: Distribution | None, step: Step) -> Distribution | None:
        """The distributions of the last `reach` emitted units; node j drew the j-th unit of a round."""
        reach, distribution = self.initialisation.reach, step.scores.distribution
        if not reach or isinstance(distribution, PointMass):
            return before
        drawn = distribution.with_draws(step.verdict.drawn)
        slot = step.count[:, None] + torch.arange(reach, device=step.count.device)
        if before is None:
            return drawn.take((slot - reach).clamp(min=0))
        both: Distribution = type(drawn).cat([before, drawn])
        return both.take(slot)

    @staticmethod
    def _resized(state: State, k: int) -> Window:
        """The last window at this round's width; slots beyond it are empty."""
        last: Window | None = state.memory
        past = None if last is None else last.past
        size = last.units.shape[1] if last is not None else 0
        slot = torch.arange(k, device=state.emitted.device).expand(state.rows, -1)
        if last is None or not size:
            units = state.root[:, None].expand(-1, k, *state.root.shape[1:])
            return Window(units, None, torch.zeros_like(slot, dtype=torch.bool), past)
        within, index = slot < size, slot.clamp(max=size - 1)
        distribution = None if last.distribution is None else last.distribution.take(index)
        return Window(take_nodes(last.units, index), distribution, last.drawn.gather(1, index) & within, past)


def _either(mask: Tensor, a: Any, b: Any) -> Distribution:
    """Two distributions of one family, `a` where `mask`."""
    nodes = torch.arange(mask.shape[1], device=mask.device)
    both: Distribution = type(a).cat([a, b])
    return both.take(torch.where(mask, nodes, nodes + mask.shape[1]))
