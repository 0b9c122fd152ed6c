"""Which logits processors may run on a draft.

A draft asks for scores after units that may never be emitted, several at once and in no fixed order. A processor allows
that if it is a pure function of (ids, scores):

* `elementwise`: it does not read the ids. All nodes in one call.
* `history`: it reads them, and answers for any ids, also for those that it would never have let pass.

transformers' own are known by name. A user's class says it of itself, with an attribute: `speculative = "history"`, or
`"elementwise"`; so does a `prefix_allowed_tokens_fn`. What says nothing may keep state between calls: no drafts.
"""

from collections.abc import Iterable
from typing import Any

ELEMENTWISE, HISTORY = "elementwise", "history"
_CLAIMS = (ELEMENTWISE, HISTORY)
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


def drafts_forbidden_by(processors: Iterable[Any]) -> tuple[str, ...]:
    """Names of the processors that may keep state between calls; none: drafts are allowed.

    Raises:
        ValueError: A class claims something that does not exist.
    """
    return tuple(_name(p) for p in processors if _claim(p) is None)


def is_elementwise(processor: Any) -> bool:
    """Whether a processor does not read the ids."""
    return _claim(processor) == ELEMENTWISE


def _claim(processor: Any) -> str | None:
    kind = type(processor)
    if kind.__module__ != _HOME:
        return _said(processor)
    if kind.__name__ == _CONSTRAINED:  # it is what the user's function is; but it does read the ids
        return _said(processor._prefix_allowed_tokens_fn) and HISTORY
    return _KNOWN.get(kind.__name__)


def _said(owner: Any) -> str | None:
    claim: str | None = getattr(owner, "speculative", None)
    if claim not in (None, *_CLAIMS):
        raise ValueError(f"{_name(owner)}.speculative is {claim!r}; it is one of {', '.join(map(repr, _CLAIMS))}")
    return claim


def _name(owner: Any) -> str:
    """A class's name, or a function's own."""
    return getattr(owner, "__name__", None) or type(owner).__name__
