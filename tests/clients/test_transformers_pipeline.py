"""transformers' own pipeline: single prompts, batches, chats, several answers each."""

from collections.abc import Callable
from typing import Any

import pytest
from transformers import pipeline

PROMPTS = ["def area(radius):", "class Point:\n    def __init__(self", "import os"]
CHAT = [{"role": "user", "content": "def area(radius):"}]
CALLS: dict[str, tuple[Any, dict[str, Any]]] = {
    "greedy": (PROMPTS[0], dict(do_sample=False)),
    "sampled": (PROMPTS[0], dict(do_sample=True, temperature=0.8)),
    "batch": (PROMPTS, dict(do_sample=True, batch_size=3)),
    "several": (PROMPTS[0], dict(do_sample=True, num_return_sequences=3)),
    "chat": (CHAT, dict(do_sample=False)),
    "stop": (PROMPTS[0], dict(do_sample=False, stop_sequence="return")),
}


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.compiled("history")
def test_text_generation(model: Any, tokenizer: Any, both: Callable, name: str) -> None:
    prompt, call = CALLS[name]
    client = pipeline("text-generation", model=model, tokenizer=tokenizer)
    report = both(model, lambda: client(prompt, max_new_tokens=40, **call))
    assert report.drafted > 0 or name == "stop", "only a text that ends early may leave nothing to draft from"
