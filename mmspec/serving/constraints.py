"""Logits processors of a request: penalties for what the text has already, and `response_format` as a grammar.

Both are pure functions of ids and scores, so that drafts may run ahead of them.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from mmspec.core.grammar import Grammar
from mmspec.core.matchers import LlguidanceMatcher
from mmspec.core.processors import HISTORY
from mmspec.registry.printable import shown

WRITTEN = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
"""JSON in one line, as Python writes it: where white space is free, small models go on with it for ever."""


class Occurrences:
    """OpenAI's penalties: of a token that the answer holds, `presence` once and `frequency` as often as it occurs are
    subtracted from the score; the prompt does not count. For one call, which asks about its prompt first.
    """

    speculative = HISTORY

    def __init__(self, presence: float, frequency: float) -> None:
        self._presence, self._frequency = presence, frequency
        self._prompt: int | None = None  # tokens

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Scores `[rows, vocab]` after `input_ids [rows, length]`."""
        if self._prompt is None:
            self._prompt = input_ids.shape[1]
        written = input_ids[:, self._prompt :]
        counts = torch.zeros_like(scores).scatter_add_(1, written, torch.ones_like(written, dtype=scores.dtype))
        return scores - self._presence * (counts > 0) - self._frequency * counts


class Fitting(LlguidanceMatcher):
    """A matcher that raises where no token of the model fits, or where llguidance gives up on a grammar; else a text
    would end there as if it were whole.
    """

    def __init__(self, inner: Any) -> None:
        super().__init__(inner)
        self._failed = inner.is_error

    def allowed(self) -> Tensor | None:
        allowed = super().allowed()
        if self._failed() or (allowed is not None and not allowed.any()):
            raise ValueError("response_format: no token of the model's goes on with what the schema allows here")
        return allowed


def grammar_of(wanted: Mapping[str, Any], table: Callable[[], Any]) -> Callable[[], Grammar] | None:
    """Makes the grammar of a call from its `response_format`; None: it asks for text. `table` gives the tokens of the
    model in llguidance's form. Refuses schemas that cannot be fulfilled.
    """
    kind, schema = wanted.get("type"), {"type": "object"}
    if kind == "text":
        return None
    if kind == "json_schema":
        named = wanted.get("json_schema")
        schema = named.get("schema") if isinstance(named, dict) else None  # type: ignore[assignment]
        if not isinstance(schema, dict):
            raise ValueError(
                "response_format is {'type': 'json_schema', 'json_schema': {'name': …, 'schema': {…}}}, with a schema"
            )
    elif kind != "json_object":
        raise ValueError(f"response_format: type is text, json_object or json_schema, not {shown(kind)}")
    import llguidance

    grammar = llguidance.LLMatcher.grammar_from_json_schema(json.dumps({**schema, "x-guidance": WRITTEN}))
    tokens = table()
    if says := llguidance.LLMatcher.validate_grammar(grammar, tokens):
        raise ValueError(f"response_format: {shown(says)}")
    return lambda: Grammar(lambda: Fitting(llguidance.LLMatcher(tokens, grammar, log_level=0)))
