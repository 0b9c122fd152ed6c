"""Speculative Jacobi decoding: the target's own last pass drafts a window of units, refined until they are accepted.

Speculative Jacobi decoding (arXiv 2410.01699) and its maximal-coupling form (2510.24211). The last round's draws at the
window's nodes become the next draft, with the distributions that they were drawn from; new slots of the window are
filled by an initialisation. Training-free, for discrete and continuous units alike. The rule decides how a redraw is
coupled with the draft (`match`: shared noise; `rejection`: maximal coupling or reflection).
Knobs: the window (`k`): longer windows accept more per pass and cost more per pass; `independent`: the next draft is
drawn anew from the last pass's distributions, as first published, which accepts less.
"""

from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from mmspec.core.compile.protocols import InsideDrafts
from mmspec.core.distributions import Categorical, Distribution, Mixed, PointMass, take_nodes, where_nodes
from mmspec.core.live import Live
from mmspec.core.noise import Counting, DraftNoise
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

    def fill(self, live: Live, window: Window, noise: DraftNoise) -> tuple[Tensor, Distribution | None]:
        """Units for all slots, `[batch, k, *unit]` (only those of new slots are read), and their distribution.

        The distribution is None for point masses; else the units were drawn from it with `noise.chain(1, k)`.
        """


@runtime_checkable
class Traceable(Protocol):
    """An initialisation that keeps nothing and has no host sync: captured rounds may run it, and equal ones share one.

    Attributes:
        traceable: Whether it is so.
    """

    traceable: bool


class Jacobi:
    """A window over the next units, refined in place; `independent` draws those that stay in it anew."""

    offers = frozenset({"chain", "window", "q"})
    needs = frozenset({"redraw"})
    everywhere = True

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
        return self.drafted(state.live, state.memory, k, noise)

    def observe(self, state: State, step: Step) -> None:
        state.memory = self.moved_on(state.memory, step, step.draft.nodes - 1)

    def fits_inside(self, state: State) -> bool:
        filling = self.initialisation
        kept = isinstance(filling, Traceable) and filling.traceable and not filling.reach
        return kept and isinstance(state.source, Counting) and state.step is not None and _is_dense(state.step)

    def inside(self, k: int, state: State) -> "WindowInside":
        return WindowInside(Jacobi(self.initialisation, self.independent), k)

    def drafted(self, live: Live, last: Window | None, k: int, noise: DraftNoise) -> Draft:
        """The units of the last window, as far as they were drawn, and behind them those of the initialisation."""
        window = resized(live, last, k)
        if self.independent and window.distribution is not None:
            draws = window.distribution.draw(noise.fresh(1, k))
            units, drawn_from = window.distribution.units(draws), window.distribution.with_draws(draws)
            window = replace(window, units=units, distribution=drawn_from)
        units, distribution = self.initialisation.fill(live, window, noise)
        units = where_nodes(window.drawn, window.units, units)
        if window.distribution is None:
            return Draft.chain(units, distribution)
        if distribution is None:
            return Draft.chain(units, Mixed(window.distribution, window.drawn, units))
        return Draft.chain(units, _either(window.drawn, window.distribution, distribution))

    def moved_on(self, last: Window | None, step: Step, k: int) -> Window:
        """The window of `k` slots behind a round: slot j is the unit drawn at node `count + j`, of the same position.

        Under `independent` the distribution is the target's alone: the next draft draws from it.
        """
        source = step.count[:, None] + torch.arange(k, device=step.count.device)
        drawn, source = source <= k, source.clamp(max=k)
        distribution, draws = step.scores.distribution.take(source), take_nodes(step.verdict.drawn, source)
        drawn_from = distribution if self.independent else distribution.with_draws(draws)
        past = self._past(None if last is None else last.past, step)
        return Window(distribution.units(draws), drawn_from, drawn, past)

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


class WindowInside(InsideDrafts):
    """`Jacobi` inside a captured round: its memory is a window of `k` slots that never changes its size.

    Before the first pass no slot is drawn, so that what the buffers hold is not read. The drafter drafts for nobody
    else.
    """

    def __init__(self, drafter: Jacobi, k: int) -> None:
        self.parents = range(-1, k - 1)
        self.key = drafter.initialisation, drafter.independent
        self._drafter = drafter

    def reserve(self, state: State) -> None:
        assert state.step is not None
        found, k = state.step.scores.distribution, len(self.parents)  # of the family of all others of the call
        with torch.inference_mode(False):
            numbers = _numbers(found)
            numbers = numbers.new_zeros(len(numbers), k, *numbers.shape[2:])
            units = torch.zeros(len(numbers), k, dtype=state.root.dtype, device=numbers.device)
            distribution = Categorical(numbers) if isinstance(found, Categorical) else PointMass(numbers)
            self._window = Window(units, distribution, torch.zeros_like(units, dtype=torch.bool))

    def load(self, drafter: Jacobi, state: State) -> None:
        self._keep(resized(state.live, state.memory, len(self.parents)))

    def unload(self, drafter: Jacobi, state: State) -> None:
        every = torch.arange(len(self.parents), device=state.root.device)[None]
        window = self._window
        assert window.distribution is not None
        state.memory = Window(window.units.clone(), window.distribution.take(every), window.drawn.clone())

    def propose(self, live: Live, noise: DraftNoise) -> Draft:
        return self._drafter.drafted(live, self._window, len(self.parents), noise)

    def observe(self, live: Live, step: Step) -> None:
        self._keep(self._drafter.moved_on(self._window, step, len(self.parents)))

    def _keep(self, window: Window) -> None:
        mine = self._window
        mine.units.copy_(window.units)
        mine.drawn.copy_(window.drawn)
        if window.distribution is not None:
            _numbers(mine.distribution).copy_(_numbers(window.distribution))


def _is_dense(step: Step) -> bool:
    """True if a round's distributions are point masses or categorical over the whole vocabulary."""
    distribution = step.scores.distribution
    return isinstance(distribution, PointMass) or (isinstance(distribution, Categorical) and distribution.ids is None)


def _numbers(distribution: Distribution | None) -> Tensor:
    """The parts of a dense distribution."""
    assert isinstance(distribution, Categorical | PointMass)
    return distribution.probs if isinstance(distribution, Categorical) else distribution.points


def resized(live: Live, last: Window | None, k: int) -> Window:
    """The last window with `k` slots; those beyond it are empty."""
    size = 0 if last is None else last.units.shape[1]
    if last is not None and size == k:
        return last
    past = None if last is None else last.past
    slot = torch.arange(k, device=live.emitted.device).expand(len(live.emitted), -1)
    if last is None or not size:
        units = live.root[:, None].expand(-1, k, *live.root.shape[1:])
        return Window(units, None, torch.zeros_like(slot, dtype=torch.bool), past)
    within, index = slot < size, slot.clamp(max=size - 1)
    distribution = None if last.distribution is None else last.distribution.take(index)
    return Window(take_nodes(last.units, index), distribution, last.drawn.gather(1, index) & within, past)


def _either(mask: Tensor, a: Any, b: Any) -> Distribution:
    """Two distributions of one family, `a` where `mask`."""
    nodes = torch.arange(mask.shape[1], device=mask.device)
    both: Distribution = type(a).cat([a, b])
    return both.take(torch.where(mask, nodes, nodes + mask.shape[1]))
