"""All comparisons of a language model, and the trial of a head, at length: what `mmspec doctor MODEL` prints.

`enable` makes the first ones when it takes a model; the others wait there for a call that needs them.
"""

from collections.abc import Callable, Iterator
from typing import Any, Protocol, runtime_checkable

import torch

from mmspec.api.build import decoder_for
from mmspec.hosts.later_checks import compare_long, compare_padded
from mmspec.hosts.model_info import lengths
from mmspec.hosts.reference_paths import PARENTS, end_of, random_ids
from mmspec.hosts.self_check import STEPS, examine
from mmspec.hosts.target import TransformersTarget

PROMPT, UNITS, NEW = 4, 64, 32
"""Random tokens, those of the text that the target writes behind them, and those that are drafted behind this text."""


@runtime_checkable
class Reporting(Protocol):
    """A drafter from a file."""

    @property
    def loaded(self) -> object:
        """A report of what was read of the file, and of how it did on the first prompt, as text."""


def comparisons(model: Any, drafter: str | None) -> Iterator[tuple[str, Callable[[], str]]]:
    """Names of comparisons, each with its function, which raises a ValueError where it refuses the model."""
    target = decoder_for(model, "plain").target
    if not isinstance(target, TransformersTarget):
        raise ValueError(f"{type(model).__name__} is no language model")
    passes, info = target.passes, target.model_info

    units = end_of(info) or max(lengths(info), default=0) + 1

    def trees() -> str:
        found = examine(info, passes.rows)
        return (
            f"{len(PARENTS)} nodes behind {len(random_ids(info, 0)[0])} tokens, and {STEPS} steps of its own generate: "
            f"logits {found.error:.1e} apart, where rounding explains {found.tolerance:.1e}"
        )

    def long() -> str:
        found = compare_long(passes, units, rows=2)
        return "; ".join(f"{name}: {each}" for name, each in found.items()) or "no setting names one to check"

    yield "trees", trees
    yield "long texts", long
    yield "padded rows", lambda: str(compare_padded(passes, units))
    if drafter is not None:
        yield "head", lambda: _tried(target, drafter)


@torch.no_grad()
def _tried(target: TransformersTarget, drafter: str) -> str:
    """The figures of a drafter behind a text that the target writes."""
    decoder = decoder_for(target.model, drafter=drafter)
    prompt = random_ids(target.model_info, 0)[0][None, :PROMPT]
    text = decoder_for(target.model, "plain").generate(prompt, UNITS).units[0]
    report = decoder.generate(text[None], NEW).report
    said = [str(decoder.drafter.loaded)] if isinstance(decoder.drafter, Reporting) else []
    return "\n".join(
        [*said, f"acceptance length {report.acceptance_length:.2f} behind {len(text)} tokens of the target"]
    )
