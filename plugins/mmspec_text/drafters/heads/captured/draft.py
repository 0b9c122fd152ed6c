"""A head's draft as one function over fixed buffers: traced once, compiled, and on CUDA replayed as one graph.

Eagerly a head costs as much time as it saves: its layers are small, and launching them takes longer than running them.
The function grows the draft with the code that drafts eagerly. A call goes over to it when its rounds are captured.
A decoder may be put together for every call, and reads its head anew; compiling takes longer than most calls. So heads
that are loaded again for the same target use the compiled functions that are there already.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from itertools import chain
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from mmspec.core.compile.choice import warp_key
from mmspec.core.compile.launch import OneLaunch
from mmspec.core.compile.pool import Pool, pool_on
from mmspec.core.drafters.growing import grown
from mmspec.core.drafters.shapes import Shape
from mmspec.core.history_processors import Prefix
from mmspec.core.noise import Counting, DraftNoise, Noise, Round, SpreadNoise
from mmspec.core.round import DrawnNoise, DrawnSource
from mmspec.core.state import State
from mmspec.core.types import Draft, TargetOutput
from mmspec.registry.printable import first_line
from mmspec.registry.switches import strict
from mmspec.registry.warn import warn
from mmspec_text.drafters.heads.head import Borrowing


@dataclass(frozen=True)
class LevelNoise(DraftNoise):
    """The target's own noise, drawn before the draft."""

    numbers: Tensor  # exp(1) of the positions behind the root, `[batch, level, vocab]`

    def level(self, depth: int, first: int, count: int) -> Noise:
        together = torch.zeros(1, count, dtype=torch.int64, device=self.numbers.device)
        return SpreadNoise(DrawnNoise(self.numbers[:, depth - 1 : depth]), together)


@dataclass(frozen=True)
class Plan:
    """The static shape of a draft."""

    head: Any
    shape: Shape  # the shape of the draft
    k: int  # its budget
    shared: bool  # whether sampled drafts use the target's own noise
    compiled: bool  # whether torch compiles it; if not, it is recorded as it is
    frozen: bool  # whether weights are baked in (`mmspec.core.frozen`)


class CapturedDraft(ABC):
    """The buffers of a draft, and its compiled function.

    Args:
        plan: The static shape.
        state: A call whose memory has read its prompt.
    """

    def __init__(self, plan: Plan, state: State) -> None:
        self.plan, self.levels, self.warp = plan, plan.shape.levels(plan.k), state.warp
        device, rows = state.emitted.device, state.rows
        with torch.inference_mode(False):
            self.emitted, self.room, self.root = (torch.zeros_like(state.emitted) for _ in range(3))
            self.history = torch.zeros(1, 1, dtype=torch.int64, device=device)  # element-wise processors read no ids
            vocab = plan.head.vocab if plan.shared and state.warp.sample else 0
            self.numbers = torch.ones(rows, self.levels if vocab else 0, vocab, device=device)
            self.key = None if plan.shared else torch.zeros(rows, 2, dtype=torch.int64, device=device)
        self._run: OneLaunch[Draft] = OneLaunch(self._draft, device, compiled=plan.compiled, frozen=plan.frozen)

    @abstractmethod
    def begun(self) -> tuple[TargetOutput, Callable[[Draft, int], TargetOutput]]:
        """The output at the root, one node, and the `feed` of `grown`; torch traces it."""

    def ended(self) -> None:
        """Called behind the draft; torch traces it."""
        return

    @property
    def prefix(self) -> Prefix:
        return Prefix(self.history, (), self.emitted)

    def load(self, state: State) -> None:
        """Take over a call."""
        if self.key is not None:
            assert isinstance(state.source, Counting)
            self.key.copy_(state.source.fresh_key)

    def warm(self, state: State) -> None:
        """Compile; the call stays as it is."""
        with torch.inference_mode(False), torch.no_grad():
            self._run.warm()

    def run(self, state: State, noise: DraftNoise) -> Draft:
        """Draft for the call that was loaded last."""
        for mine, its in ((self.emitted, state.emitted), (self.root, state.root), (self.room, state.room)):
            mine.copy_(its)
        if self.numbers.shape[1]:
            self.numbers.copy_(noise.chain(1, self.levels).exponential(self.numbers.shape[2]))
        with torch.inference_mode(False), torch.no_grad():
            return self._run()

    def _draft(self) -> Draft:
        """The traced function. It reads and writes the buffers."""
        output, feed = self.begun()
        round = Round(DrawnSource(None, self.key), self.emitted, ())
        noise = LevelNoise(round, True, self.numbers) if self.key is None else DraftNoise(round, False)
        draft, _, _ = grown(self.plan.shape, self, self.plan.k, self.levels, noise, output, feed=feed)
        self.ended()
        return draft


Kind = TypeVar("Kind", bound=CapturedDraft)


def lent(
    kind: Callable[[Plan, State], Kind],
    head: Borrowing,
    embedding: nn.Module,
    *,
    shape: Shape,
    state: State,
    k: int,
    noise: DraftNoise,
    beside: Hashable = (),
) -> Kind | None:
    """A captured draft for this call alone, which is loaded; None, with a warning, if it cannot be compiled.

    Args:
        kind: Makes it.
        head: The head, a module of torch.
        embedding: The target's.
        shape: The shape of the draft.
        state: The call; its rounds are captured, and it has drafted before.
        k: The budget of every draft.
        noise: What its sampled drafts use.
        beside: What else two calls must share for one captured draft to serve both.
    """
    twin, compiled = twin_of(head, embedding), state.capture.round.plan.compiled
    pool: Pool[Kind] = pool_on(twin)
    pool.renew([twin, *twin.borrowed])

    def capture() -> Kind | None:
        try:
            captured = kind(Plan(twin, shape, k, noise.shared, compiled, pool.frozen and compiled), state)
            captured.warm(state)
        except Exception as error:
            if strict():
                raise
            warn(f"drafts of {type(twin).__name__} are not captured, and run eagerly: {first_line(error)}")
            return None
        captured.load(state)
        return captured

    settings = type(shape), tuple(sorted(vars(shape).items()))
    key = (k, settings, warp_key(state.warp), noise.shared, state.rows, compiled, beside)
    return pool.lend(key, state, capture)


NAME = "_mmspec_heads"
"""The attribute of a target's embedding that holds its heads."""
MOST = 4
"""Heads that are kept for a target."""


class _Heads:
    """Heads of one target, the latest one last. A copy is empty: they hold the target's modules."""

    def __init__(self) -> None:
        self.heads: list[Any] = []

    def __deepcopy__(self, memo: dict[int, Any]) -> "_Heads":
        return _Heads()

    def __reduce__(self) -> tuple[type["_Heads"], tuple[()]]:
        return _Heads, ()


def twin_of(head: Borrowing, embedding: nn.Module) -> Any:
    """An earlier head that drafts as this one does, for the same target; or the head itself, which is kept."""
    known = vars(embedding).setdefault(NAME, _Heads()).heads
    twin = next((other for other in reversed(known) if other is head or _same(other, head)), head)
    known[:] = [*[other for other in known if other is not twin][1 - MOST :], twin]
    return twin


def _same(one: Any, other: Any) -> bool:
    """Whether two heads have the same class, settings, target and weights."""
    if type(one) is not type(other) or _settings(one) != _settings(other):
        return False
    if any(a is not b for a, b in zip(one.borrowed, other.borrowed, strict=True)):
        return False
    mine, its = _tensors(one), _tensors(other)
    return mine.keys() == its.keys() and all(
        (value.device, value.dtype) == (its[name].device, its[name].dtype) and torch.equal(value, its[name])
        for name, value in mine.items()
    )


def _tensors(head: nn.Module) -> dict[str, Tensor]:
    return dict(chain(head.named_parameters(), head.named_buffers()))


def _settings(head: Any) -> dict[str, Any]:
    """The plain attributes of a head; those of torch begin with an underscore."""
    return {name: value for name, value in vars(head).items() if not name.startswith("_")}
