"""Matchers: they follow a grammar along a text, say which units it allows next, and can go back.

`Matcher` is what `mmspec.Grammar` asks for. Matchers of xgrammar (arXiv 2411.15100) and llguidance are recognised by
their methods, so that neither library is imported here.
"""

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor


@runtime_checkable
class Matcher(Protocol):
    """A grammar's state behind the units that it accepted."""

    def accept(self, unit: int) -> bool:
        """Go on behind `unit`; False, and nothing changes, if the grammar does not allow it here."""

    def allowed(self) -> Tensor | None:
        """The units that the grammar allows next: `[ids]` bool, on the CPU; None: all, because the text has ended."""


@runtime_checkable
class Rollback(Protocol):
    """A matcher that can go back; without it there are no drafts."""

    def rollback(self, count: int) -> None:
        """Undo the last `count` accepted units."""


@runtime_checkable
class Foresees(Protocol):
    """A matcher that knows units which the grammar leaves no choice about."""

    def forced(self) -> Sequence[int]:
        """The next units, as far as the grammar decides them; a guess where a text has several encodings."""


@runtime_checkable
class _Xgrammar(Protocol):
    """`xgrammar.GrammarMatcher`."""

    def accept_token(self, token_id: int) -> bool: ...

    def fill_next_token_bitmask(self, bitmask: Tensor, index: int = 0) -> bool: ...

    def find_jump_forward_string(self) -> str: ...

    def is_terminated(self) -> bool: ...

    def rollback(self, num_tokens: int = 1) -> None: ...


@runtime_checkable
class _Llguidance(Protocol):
    """`llguidance.LLMatcher`."""

    def try_consume_tokens(self, tokens: list[int]) -> int: ...

    def compute_bitmask(self) -> bytes: ...

    def compute_ff_tokens(self) -> list[int]: ...

    def is_stopped(self) -> bool: ...

    def rollback(self, num_tokens: int) -> bool: ...


class XgrammarMatcher:
    """A matcher of xgrammar, as `Matcher`, `Rollback` and `Foresees`.

    Args:
        inner: The live matcher, at the beginning of a text.
        vocab: Ids of its tokenizer, padding of the model's output layer included.
        tokenizer: Encodes the text that the grammar decides; None: nothing is foreseen.
    """

    def __init__(self, inner: _Xgrammar, vocab: int, tokenizer: Any = None) -> None:
        self._inner, self._tokenizer = inner, tokenizer
        self._bits = torch.full((1, -(-vocab // 32)), -1, dtype=torch.int32)

    def accept(self, unit: int) -> bool:
        return not self._inner.is_terminated() and bool(self._inner.accept_token(unit))

    def rollback(self, count: int) -> None:
        self._inner.rollback(count)

    def allowed(self) -> Tensor | None:
        if self._inner.is_terminated():
            return None
        self._inner.fill_next_token_bitmask(self._bits)
        return _unpacked(self._bits[0])

    def forced(self) -> Sequence[int]:
        if self._tokenizer is None or self._inner.is_terminated():
            return []
        text = self._inner.find_jump_forward_string()
        return self._tokenizer.encode(text, add_special_tokens=False) if text else []


class LlguidanceMatcher:
    """A matcher of llguidance, at the beginning of a text, as `Matcher`, `Rollback` and `Foresees`.

    It stops where the grammar does. The end of the text, which it allows there and does not consume, is counted here.
    """

    def __init__(self, inner: _Llguidance) -> None:
        self._inner, self._ended = inner, False

    def accept(self, unit: int) -> bool:
        if not self._inner.is_stopped():
            return self._inner.try_consume_tokens([unit]) == 1
        allowed = self.allowed()
        if allowed is None or not allowed[unit : unit + 1].any():
            return False
        self._ended = True
        return True

    def rollback(self, count: int) -> None:
        count, self._ended = count - self._ended, False
        if count and not self._inner.rollback(count):
            raise ValueError(f"the matcher of llguidance did not go back by {count} tokens")

    def allowed(self) -> Tensor | None:
        if self._ended:
            return None
        return _unpacked(torch.frombuffer(bytearray(self._inner.compute_bitmask()), dtype=torch.int32))

    def forced(self) -> Sequence[int]:
        return [] if self._inner.is_stopped() else self._inner.compute_ff_tokens()


def as_matcher(made: Any, vocab: int, tokenizer: Any) -> Matcher:
    """A matcher of any known library as ours; arguments as in `XgrammarMatcher`."""
    if isinstance(made, Matcher):
        return made
    if isinstance(made, _Xgrammar):
        return XgrammarMatcher(made, vocab, tokenizer)
    if isinstance(made, _Llguidance):
        return LlguidanceMatcher(made)
    raise TypeError(
        f"a grammar's matcher has accept(unit) and allowed(), or is one of xgrammar (GrammarMatcher) or llguidance "
        f"(LLMatcher); {type(made).__name__} is neither"
    )


def _unpacked(bits: Tensor) -> Tensor:
    """`[n]` int32, the lowest bit first, as `[32 n]` bool."""
    return ((bits[:, None] >> torch.arange(32, dtype=torch.int32)) & 1).bool().flatten()
