"""Clients that nobody here wrote, on the shipped `text-1m`: what they get without mmspec, and with it.

`make test-clients` installs them into an environment of their own; a client that is not installed is skipped.
"""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import mmspec
from mmspec.core.report import Report
from mmspec.shipped import asset

METHODS = ("prompt-lookup", "token-recycling", "grammar")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All tests of this folder are of the tier `clients`."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.clients)


@pytest.fixture(scope="session")
def folder() -> Path:
    return asset("text-1m")


@pytest.fixture
def model(folder: Path) -> Iterator[Any]:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    yield model
    mmspec.disable(model)


@pytest.fixture(scope="session")
def tokenizer(folder: Path) -> Any:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.chat_template = "{% for m in messages %}{{ m['content'] }}\n{% endfor %}"
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def answer(ask: Callable[[], Any], seed: int) -> tuple[Any, torch.Tensor]:
    """The result of `ask()`, and the generator's state when the threads that it began are over."""
    torch.manual_seed(seed)
    before = threading.enumerate()
    made = ask()
    for thread in threading.enumerate():
        if thread not in before and not thread.daemon:
            thread.join()
    return made, torch.get_rng_state()


@pytest.fixture(params=METHODS)
def both(request: pytest.FixtureRequest) -> Callable[..., Report]:
    """`both(model, ask)`: what `ask()` returns is the same, seed for seed, with and without mmspec.

    Returns the report of the last call, for tests that want to know whether anything was drafted.
    """

    def run(model: Any, ask: Callable[[], Any], seeds: int = 3) -> Report:
        reports = []
        for seed in range(seeds):
            right, state = answer(ask, seed)
            with mmspec.enable(model, request.param) as spec:
                ours, left = answer(ask, seed)
            assert ours == right, f"seed {seed}"
            assert torch.equal(left, state), f"seed {seed}: torch's generator was left elsewhere"
            assert spec.report is not None, "the client did not go through generate"
            reports.append(spec.report)
        return reports[-1]

    return run
