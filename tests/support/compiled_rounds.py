"""The mark `compiled`: a test that compares outputs runs as ever, and again with compiled rounds.

Every decoder of the second run that says nothing about `compile` has `compile=True`. That run is slow-tier, and it
passes only if all calls were captured, so that none fell back to the eager loop in silence:

* `@pytest.mark.compiled`: every call is captured.
* `@pytest.mark.compiled("history")`: calls may run eagerly for these reasons, words of `REASONS`, and no other. A
  reason counts if mmspec gave it for that very call.
* `inductor=True`: rounds are compiled, and not only traced.
"""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest

REASONS: Mapping[str, str] = {
    "history": r"read the history on the host",
    "no shape": r"\w+ cannot run all passes with one number of nodes",
    "no pass": r"the pass of \w+ cannot be captured",
    "expert loop": r"\w+ runs one chosen expert after another",
    "numpy": r"Unsupported python_type\(\) call",  # torch cannot trace a tensor times a number of NumPy's, as CTRL has
}
"""Why a call may run eagerly, and what mmspec then says."""


@dataclass(frozen=True)
class Again:
    """The second run of a test."""

    reasons: tuple[str, ...] = ()  # words of `REASONS`: why calls may run eagerly
    inductor: bool = False  # whether rounds are compiled, and not only traced


def parametrized(metafunc: pytest.Metafunc) -> None:
    """Let a marked test run twice.

    Raises:
        ValueError: The mark has an unknown word.
    """
    mark = metafunc.definition.get_closest_marker("compiled")
    if mark is None:
        return
    again = Again(mark.args, **mark.kwargs)
    if not set(again.reasons) <= REASONS.keys():
        raise ValueError(f"{metafunc.function.__name__}: reasons are {', '.join(REASONS)}, not {again.reasons}")
    second = pytest.param(again, id="compiled", marks=[pytest.mark.slow])
    metafunc.parametrize("rounds", [pytest.param(None, id="eager"), second], indirect=True)


@contextmanager
def compiled_rounds(again: Again) -> Iterator[None]:
    """A block in which decoders compile their rounds, unless they say otherwise.

    Raises:
        AssertionError: At the end: no decoder ran, or a call ran eagerly for another reason than those given.
    """
    import torch

    from mmspec.core.compile import launch

    watch = Watch()
    with pytest.MonkeyPatch.context() as patch:
        if not again.inductor:
            patch.setattr(launch, "BACKEND", "eager")
        watch.patch(patch)
        try:
            yield
        finally:
            torch._dynamo.reset()
    watch.judge(again.reasons)


class Watch:
    """The calls of a block whose rounds should be captured, and what was said of those that were not."""

    def __init__(self) -> None:
        self._calls: list[tuple[Any, Any]] = []  # a decoder or its captures, and a report
        self._asked: list[Any] = []
        self._said: list[str] = []
        self._why: dict[int, str] = {}  # by decoder, captures or report, all of which the calls keep
        self._models: list[Any] = []
        self._making = False

    def patch(self, patch: pytest.MonkeyPatch) -> None:
        """Watch decoders, and let them compile."""
        from mmspec.core import promise
        from mmspec.core.compile import captured
        from mmspec.core.compile.captured import Captures
        from mmspec.core.compile.pool import NAME
        from mmspec.core.decoder import Decoder

        make, start, round_for, pool_of = Decoder.__init__, Decoder.start, Captures.round_for, captured.pool_of

        def making(decoder: Any, *parts: Any, **how: Any) -> None:
            inner, self._making = self._making, True  # a drafter's own decoder, which nobody asked to compile
            if not inner and how.get("compile") is None and how.get("shape") != "any":
                how = {**how, "shape": how.get("shape"), "compile": True}
                self._asked.append(decoder)
            del self._said[:]
            try:
                make(decoder, *parts, **how)
            finally:
                self._making = inner
            if self._said:
                self._why[id(decoder)] = self._said[-1]

        def starting(decoder: Any, *given: Any, **how: Any) -> Any:
            state = start(decoder, *given, **how)
            if any(decoder is asked for asked in self._asked):
                self._calls.append((decoder, state.report))
            return state

        def choosing(captures: Any, state: Any, *given: Any) -> Any:
            del self._said[:]
            found = round_for(captures, state, *given)
            if self._said:
                self._why[id(captures)] = self._said[-1]
            if captures.compile and not any(state.report is report for _, report in self._calls):
                self._calls.append((captures, state.report))  # the caller counts in a report of its own
            if found is None and (self._said or captures.refused):  # said once; the decoder remembers
                self._why.setdefault(id(state.report), self._why.get(id(captures), "nothing"))
            return found

        def own_pool(target: Any, rule: Any) -> Any:
            pool = pool_of(target, rule)
            model = vars(target).get("model")
            if model is not None and not any(model is seen for seen in self._models):
                self._models.append(model)
                vars(model).pop(NAME, None)  # what other tests captured
                pool = pool_of(target, rule)
            return pool

        patch.setattr(Decoder, "__init__", making)
        patch.setattr(Decoder, "start", starting)
        patch.setattr(Captures, "round_for", choosing)
        patch.setattr(captured, "pool_of", own_pool)
        for module in (captured, promise):
            patch.setattr(module, "warn", self._said.append)

    def judge(self, reasons: tuple[str, ...]) -> None:
        """Every call with a pass was captured, or ran eagerly for one of the reasons."""
        assert self._calls, "no decoder ran that could have compiled its rounds"
        for owner, report in self._calls:
            if report.sizes and not report.compiled:
                said = self._why.get(id(report)) or self._why.get(id(owner), "nothing")
                fits = any(re.search(REASONS[reason], said) for reason in reasons)
                assert fits, f"{report.method} on {type(owner.target).__name__} ran eagerly, and said {said!r}"
