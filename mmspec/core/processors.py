"""Logits processors that may run on a draft.

A draft needs scores after units that may never be emitted, several at once and in no fixed order. A processor allows
that if it is a pure function of (ids, scores):

* `elementwise`: it does not read the ids. All nodes in one call.
* `history`: it reads them, and accepts any ids, also those that it would never have allowed.

transformers' own processors are known by name. A user's class, or a `prefix_allowed_tokens_fn`, declares itself with an
attribute: `speculative = "history"`, or `"elementwise"`. Anything else may keep state between calls: no drafts.
"""

from collections.abc import Iterable
from typing import Any, Protocol, runtime_checkable

ELEMENTWISE, HISTORY = "elementwise", "history"
_KINDS = (ELEMENTWISE, HISTORY)
_HOME = "transformers.generation.logits_process"
_CONSTRAINED = "PrefixConstrainedLogitsProcessor"

_KNOWN = dict.fromkeys(
    (
        "TemperatureLogitsWarper", "TopKLogitsWarper", "TopPLogitsWarper", "MinPLogitsWarper", "TypicalLogitsWarper",
        "EpsilonLogitsWarper", "EtaLogitsWarper", "TopHLogitsWarper", "InfNanRemoveLogitsProcessor",
        "LogitNormalization", "SuppressTokensLogitsProcessor",
    ),
    ELEMENTWISE,
) | dict.fromkeys(
    (
        "MinLengthLogitsProcessor", "MinNewTokensLengthLogitsProcessor", "RepetitionPenaltyLogitsProcessor",
        "EncoderRepetitionPenaltyLogitsProcessor", "NoRepeatNGramLogitsProcessor",
        "EncoderNoRepeatNGramLogitsProcessor", "SequenceBiasLogitsProcessor", "NoBadWordsLogitsProcessor",
        "ForcedBOSTokenLogitsProcessor", "ForcedEOSTokenLogitsProcessor", "ExponentialDecayLengthPenalty",
        "SuppressTokensAtBeginLogitsProcessor", "WatermarkLogitsProcessor",
    ),
    HISTORY,
)  # fmt: skip


_OF_VALUES = ("TemperatureLogitsWarper", "TopKLogitsWarper", "TopPLogitsWarper", "MinPLogitsWarper")
"""Those for which a unit without probability is none."""

_KNOWS_ROWS = ("EncoderRepetitionPenaltyLogitsProcessor", "EncoderNoRepeatNGramLogitsProcessor", _CONSTRAINED)
"""Those of transformers that hold something for every row of the batch."""


@runtime_checkable
class SpeculativeProcessor(Protocol):
    """A processor, or a `prefix_allowed_tokens_fn`, that declares itself pure.

    Attributes:
        speculative: `elementwise` or `history`; None declares nothing.
    """

    speculative: str | None


def drafts_forbidden_by(processors: Iterable[Any]) -> tuple[str, ...]:
    """Names of the processors that may keep state between calls; none: drafts are allowed."""
    return tuple(_name(p) for p in processors if _kind(p) is None)


def is_elementwise(processor: Any) -> bool:
    """True if a processor does not read the ids."""
    return _kind(processor) == ELEMENTWISE


def reads_values(processor: Any) -> bool:
    """True if a processor does to some units what it does to them among others that have no probability."""
    return type(processor).__module__ == _HOME and _name(processor) in _OF_VALUES


def knows_rows(processor: Any) -> bool:
    """True if a processor may tell rows of the batch apart by their index: then it gets all of them, in order."""
    cls = type(processor)
    if cls.__module__ != _HOME or cls.__name__ in _KNOWS_ROWS:
        return True
    # The length of every row's prompt, as a tensor.
    return cls.__name__ == "RepetitionPenaltyLogitsProcessor" and not isinstance(
        processor.prompt_ignore_length, int | None
    )


def _kind(processor: Any) -> str | None:
    cls = type(processor)
    if cls.__module__ != _HOME:
        return _declared(processor)
    if cls.__name__ == _CONSTRAINED:  # as pure as the user's function, and it reads the ids
        return _declared(processor._prefix_allowed_tokens_fn) and HISTORY
    return _KNOWN.get(cls.__name__)


def _declared(owner: Any) -> str | None:
    kind = owner.speculative if isinstance(owner, SpeculativeProcessor) else None
    if kind not in (None, *_KINDS):
        raise ValueError(f"{_name(owner)}.speculative is {kind!r}; it is one of {', '.join(map(repr, _KINDS))}")
    return kind


def _name(owner: Any) -> str:
    """A class's name, or a function's own."""
    return getattr(owner, "__name__", None) or type(owner).__name__
