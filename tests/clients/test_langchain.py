"""langchain over a pipeline of transformers: one prompt, several, stop words, streaming."""

from collections.abc import Callable
from typing import Any

import pytest
from transformers import pipeline

langchain = pytest.importorskip("langchain_huggingface")


@pytest.fixture
def client(model: Any, tokenizer: Any) -> Any:
    generate = pipeline("text-generation", model=model, tokenizer=tokenizer, max_new_tokens=40, do_sample=True)
    return langchain.HuggingFacePipeline(pipeline=generate)


def test_one_prompt(client: Any, model: Any, both: Callable) -> None:
    assert both(model, lambda: client.invoke("def area(radius):")).drafted > 0


def test_several_prompts_and_a_stop_word(client: Any, model: Any, both: Callable) -> None:
    prompts = ["def area(radius):", "class Point:", "import os"]
    both(model, lambda: client.batch(prompts, stop=["return"]))


def test_stream(client: Any, model: Any, both: Callable) -> None:
    both(model, lambda: "".join(client.stream("def area(radius):")))
