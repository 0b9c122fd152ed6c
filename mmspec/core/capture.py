"""Captured rounds of a decoder: which calls get one, which plans exist, and what happens where none is possible.

A plan serves one call at a time. It is lent to a call until the call's state is gone; a second call of the same shape
in the meantime gets a plan of its own. What cannot be captured is decoded by the eager loop, with one warning that says
why.
"""

import gc
import time
import weakref
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from torch import Tensor
from tqdm import tqdm

from mmspec.core.capabilities import Capturable
from mmspec.core.captured import CapturedRound, Plan
from mmspec.core.noise import Round
from mmspec.core.processors import is_elementwise
from mmspec.core.protocols import Target
from mmspec.core.round import decided
from mmspec.core.rules.rule import Rule
from mmspec.core.state import State
from mmspec.core.tree import TreeIndex
from mmspec.core.types import Draft, Scores
from mmspec.core.warp import Warp
from mmspec.registry.suggest import unknown
from mmspec.registry.switches import strict
from mmspec.registry.warn import warn

Compile = Literal["auto"] | bool | None
"""Whether rounds are captured: None or False: no. True: yes, where possible. `auto`: where that is faster."""

TIMED_RUNS = 5
"""Rounds of either kind that `auto` times."""

SLACK = 16.0
"""A captured pass may differ from the eager one by so many units of rounding, as a share of the largest logit."""


def checked_compile(compile: Any) -> Compile:
    """The argument, if it means something.

    Raises:
        ValueError: It is neither a truth value nor `auto`.
    """
    if compile is None or isinstance(compile, bool):
        return compile or None
    if compile != "auto":
        raise ValueError(unknown("compile", compile, ("auto",)) + ", True, False and None")
    return "auto"


@dataclass
class _Lent:
    """A captured round and whether a call has it."""

    round: CapturedRound
    busy: bool = False


@dataclass
class _Shape:
    """What is known of calls of one shape: their rounds; `slower`, if the eager loop won the timing."""

    lent: list[_Lent] = field(default_factory=list)
    slower: bool = False


class Captures:
    """The captured rounds of a decoder.

    Args:
        target: The decoder's target.
        rule: Its rule.
        compile: As in `Decoder`.
    """

    def __init__(self, target: Target, rule: Rule, compile: Compile) -> None:
        self.target, self.rule, self.compile = target, rule, compile
        self._shapes: dict[Hashable, _Shape] = {}
        self._own_trees = False
        self._refused = False

    @property
    def rounds(self) -> list[CapturedRound]:
        """Every round that was captured."""
        return [lent.round for shape in self._shapes.values() for lent in shape.lent]

    def round_for(self, state: State, draft: Draft) -> CapturedRound | None:
        """The captured round that takes this round's draft (not rooted); None: the eager loop goes on.

        The first round of a call decides whether it is captured; a draft whose tree does not fit changes the plan.
        """
        captured: CapturedRound | None = state.captured
        if captured is not None and captured.fits(draft):
            return captured
        if captured is None and (state.eager or self.compile is None or self._refused):
            return None
        self._own_trees = self._own_trees or captured is not None
        try:
            state.captured = self._begun(state, draft)
        except Exception as error:
            if strict():
                raise
            self._refused, state.captured = True, None
            self._shapes.clear()  # frees what the buffers hold
            warn(f"rounds are not captured, and run eagerly: {_in_a_line(error)}")
        captured = state.captured
        state.eager = captured is None
        return captured

    def _begun(self, state: State, draft: Draft) -> CapturedRound | None:
        if not isinstance(self.target, Capturable) or self.target.vocab is None:
            raise ValueError(f"the pass of {type(self.target).__name__} cannot be captured")
        reading = [type(p).__name__ for p in state.warp.processors if not is_elementwise(p)]
        if reading:
            raise ValueError(f"{', '.join(reading)} read the history on the host")
        tree = None if self._own_trees else _tree(draft, state.width)
        columns = _bucket(state.prompt_length + state.limit + 1)
        key = (tree, state.width, state.k, columns, len(state.ends), state.context, _warp_key(state.warp))
        shape = self._shapes.setdefault((key, self.target.capture_key(state.cache)), _Shape())
        if shape.slower:
            return None
        if all(lent.busy for lent in shape.lent) and shape.lent:
            gc.collect()  # calls that ended may be part of a cycle
        free = next((lent for lent in shape.lent if not lent.busy), None)
        if free is None:
            captured = self._captured(state, tree, columns)
            if captured is None:
                shape.slower = True
                return None
            free = _Lent(captured)
            shape.lent.append(free)
        else:
            free.round.load(state)
        free.busy = True
        weakref.finalize(state, _give_back, free)
        state.report.compiled = True
        return free.round

    def _captured(self, state: State, tree: tuple[int, ...] | None, columns: int) -> CapturedRound | None:
        """A new captured round, loaded; None if the eager round is faster and that matters."""
        assert isinstance(self.target, Capturable) and self.target.vocab is not None
        index = None if tree is None else TreeIndex.static(tree, state.emitted.device)
        deepest = min(state.width - 1, max(state.k, 1)) if index is None else index.deepest
        plan = Plan(state.rows, state.width, deepest, index, self.target.vocab, state.warp, self.rule)
        eager, expected = _timed(lambda: self._eager_round(state, plan))
        captured = CapturedRound(plan, self.target.captured_pass(state.cache, index), columns, state)
        captured.load(state)
        with tqdm(total=1, desc="compiling the round", leave=False, disable=None) as bar:
            captured.warm()
            bar.update()
        compiled, found = _timed(captured.idle)
        _refuse_difference(expected, found)
        if self.compile == "auto" and eager <= compiled:
            return None
        return captured

    def _eager_round(self, state: State, plan: Plan) -> Scores:
        """A round that changes nothing, by the eager loop's parts."""
        live = replace(state.live, done=torch.ones_like(state.done), history=state.history.clone())
        star = TreeIndex.static([-1] + [0] * (plan.nodes - 1), state.emitted.device)
        index = star if plan.index is None else plan.index
        units = state.root[:, None].expand(-1, plan.nodes)
        draft = Draft(units, index, torch.ones_like(units, dtype=torch.bool))
        output = self.target.verify(state.cache, draft)
        scores = state.warp.elementwise(output, draft, state.history, state.emitted)
        _, step = decided(live, draft, scores, self.rule, Round(state.source, state.emitted, state.host_emitted))
        self.target.commit(state.cache, step.verdict.path, step.count)
        return scores


def _timed(run: Callable[[], Scores]) -> tuple[float, Scores]:
    """The shortest of some runs in seconds, and the result."""
    best = float("inf")
    for _ in range(TIMED_RUNS):
        began = time.perf_counter()
        scores = run()
        float(scores.finite.sum())  # waits for the device
        best = min(best, time.perf_counter() - began)
    return best, scores


def _refuse_difference(expected: Scores, found: Scores) -> None:
    """Refuse a captured pass whose scores at the root are not those of the eager pass.

    Raises:
        ValueError: They differ by more than rounding.
    """
    assert expected.unprocessed is not None and found.unprocessed is not None
    eager, captured = expected.unprocessed[:, 0], found.unprocessed[:, 0]
    scale, apart = float(eager.abs().max()), float((eager - captured).abs().max())
    if not apart <= max(1e-3, SLACK * float(torch.finfo(torch.bfloat16).eps)) * scale:
        raise ValueError(f"the captured pass differs from the eager one by {apart:.1e}, where logits reach {scale:.1e}")


def _tree(draft: Draft, nodes: int) -> tuple[int, ...] | None:
    """Parents of the tree that a round's draft has, padded to `nodes`; None: rows or rounds have trees of their own."""
    return draft.index.padded(nodes).listed


def _give_back(lent: _Lent) -> None:
    lent.busy = False


def _bucket(columns: int) -> int:
    """So many columns, rounded up to a power of two."""
    return max(256, 1 << (columns - 1).bit_length())


def _warp_key(warp: Warp) -> Hashable:
    """What a plan bakes in of a warp. Processors of one class with equal settings are the same."""
    settings = tuple(
        (type(p), *((name, _frozen(value)) for name, value in sorted(vars(p).items()))) for p in warp.processors
    )
    return settings, warp.sample, warp.guidance, None if warp.forced is None else _frozen(warp.forced)


def _frozen(value: Any) -> Hashable:
    """A processor's setting as a key; objects that are not plain data are told apart by who they are."""
    if isinstance(value, Tensor):
        return str(value.dtype), tuple(value.shape), tuple(value.flatten().tolist())
    if isinstance(value, list | tuple):
        return tuple(map(_frozen, value))
    plain = isinstance(value, int | float | str | None | torch.device | torch.dtype)
    return value if plain else id(value)


def _in_a_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
