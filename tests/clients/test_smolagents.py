"""smolagents: loads the model itself, stops at strings by a criterion with a memory, streams from a thread."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

smolagents = pytest.importorskip("smolagents")

MESSAGES = [{"role": "user", "content": [{"type": "text", "text": "def area(radius):"}]}]


@pytest.fixture
def client(folder: Path, tokenizer: Any) -> Any:
    client = smolagents.TransformersModel(str(folder), device_map="cpu", torch_dtype="float32", max_new_tokens=40)
    client.tokenizer.chat_template = tokenizer.chat_template
    return client


@pytest.mark.parametrize("stops", [None, ["\n\n", "return"]])
def test_answers(client: Any, both: Callable, stops: list[str] | None) -> None:
    report = both(client.model, lambda: client.generate(MESSAGES, stop_sequences=stops).content)
    assert report.drafted > 0


def test_streams(client: Any, both: Callable) -> None:
    both(client.model, lambda: "".join(delta.content for delta in client.generate_stream(MESSAGES)))
