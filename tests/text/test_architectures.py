"""Every architecture in the zoo under `mmspec.enable`: the text of unmodified transformers, or a refusal."""

from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

import mmspec
from mmspec.compare.equality import Stock, assert_same, stock
from mmspec.core.report import Report
from tests.support.zoo import ARCHITECTURES, MEANS, REFUSED, SAYS, build, noisy

GREEDY = dict(do_sample=False, max_new_tokens=24)
SAMPLED = dict(do_sample=True, top_k=0, temperature=0.8, max_new_tokens=24)
METHODS = {"chain": "draft-model", "tree": "draft-tree"}
HEAP = "dyspec"
FAMILIES = list({recipe.family: name for name, recipe in reversed(ARCHITECTURES.items())}.values())
"""The first architecture of every family."""

OTHERS = [name for name in ARCHITECTURES if name not in FAMILIES]
CASES = [
    pytest.param(name, shape, marks=[pytest.mark.slow] if name in OTHERS else [])
    for name in ARCHITECTURES
    for shape in METHODS
]
"""Every family in the fast tier, with a chain or a tree; every architecture in the slow one, with both."""

SAMPLES = [
    "llama",
    "gemma3n_text",
    "gpt_oss",
    "bert",
    *(
        pytest.param(name, marks=pytest.mark.slow)
        for name in ("falcon-new", "gpt2", "mistral", "gemma2", "llama4_text", "qwen3_moe", "deepseek_v3")
    ),
]
"""What is drawn depends on the core more than on the architecture."""
LONG = ["draft-model", "draft-tree", "prompt-lookup", "token-recycling", "suffix"]


class Ours(NamedTuple):
    """The result of a call of an enabled model."""

    ids: Tensor
    state: Tensor
    report: Report


@lru_cache(maxsize=2)
def pair(name: str) -> tuple[Any, Any]:
    """A model, and a drafter that is a little wrong."""
    model = build(name)
    return model, noisy(model, 0.05)


def spec(name: str, method: str) -> dict[str, Any]:
    """Arguments of `enable`."""
    drafts = method.startswith("draft-") or method == HEAP
    return {"method": method, **({"drafter": pair(name)[1], "k": 4} if drafts else {})}


@lru_cache(maxsize=2)
def theirs(name: str, prompts: Callable, batch: int, call: tuple[tuple[str, Any], ...]) -> Stock:
    """The call by transformers; methods of one architecture follow one another and share it."""
    return stock(pair(name)[0], prompts(batch), 0, **dict(call))


def both(name: str, method: str, prompts: Callable, batch: int, call: dict[str, Any]) -> tuple[Stock, Ours]:
    """The same call by transformers and by us."""
    model, run = pair(name)[0], theirs(name, prompts, batch, tuple(call.items()))
    with mmspec.enable(model, **spec(name, method)) as enabled:
        torch.manual_seed(0)
        ids = model.generate(**prompts(batch), **call)
        assert enabled.report is not None
        return run, Ours(ids, torch.get_rng_state(), enabled.report)


def batch(name: str) -> int:
    """The rows of a ragged batch; one where padding changes what stock says, so that such a batch is refused."""
    return 1 if ARCHITECTURES[name].alone else 3


@pytest.mark.thinned(1)
@pytest.mark.parametrize(("name", "shape"), CASES)
@pytest.mark.compiled("history", "expert loop", "numpy")
def test_greedy(name: str, shape: str, prompts: Callable) -> None:
    """A ragged batch; the drafter is right often enough that commits move nodes about."""
    run, ours = both(name, METHODS[shape], prompts, batch(name), GREEDY)
    assert_same(ours.ids, run, ours.state)
    assert ours.report.acceptance_length > 1.2, "nothing was accepted, so nothing was tested"


@pytest.mark.parametrize("shape", [pytest.param("chain", marks=pytest.mark.slow), "tree"])
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * bool(i % 5)) for i, name in enumerate(FAMILIES)]
)
def test_greedy_one_row(name: str, shape: str, prompts: Callable) -> None:
    run, ours = both(name, METHODS[shape], prompts, 1, GREEDY)
    assert_same(ours.ids, run, ours.state)


@pytest.mark.thinned(1)
@pytest.mark.parametrize("method", [*METHODS.values(), pytest.param(HEAP, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", SAMPLES)
@pytest.mark.compiled("history", "expert loop", "numpy")
def test_sampled(name: str, method: str, prompts: Callable) -> None:
    run, ours = both(name, method, prompts, 3, SAMPLED)
    assert_same(ours.ids, run, ours.state)
    assert ours.report.acceptance_length > 1.2, "nothing was accepted, so nothing was tested"


# The image plugin has a target for codes on a grid; that the text target refuses them stands in `test_positions`.
# That XLNet's target takes no prompt of `generate` stands in `zoo/infill/test_xlnet`.
REFUSALS = [name for name in REFUSED if REFUSED[name].reason not in ("grid", "blanks")]
FIRST_OF_REASON = set({REFUSED[name].reason: name for name in reversed(REFUSALS)}.values())
"""One architecture for every reason, which the fast tier tries."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name not in FIRST_OF_REASON)) for name in REFUSALS]
)
def test_refused(name: str) -> None:
    """A model that cannot be verified exactly is refused before anything runs, and the message says why."""
    refused = REFUSED[name]
    print(f"{name}: {MEANS[refused.reason]}")
    model = refused.model()
    with pytest.raises(ValueError, match=SAYS[refused.reason]):
        mmspec.enable(model, "prompt-lookup")
    assert "generate" not in model.__dict__


@pytest.mark.slow
@pytest.mark.parametrize("shape", METHODS)
@pytest.mark.parametrize("name", OTHERS)
def test_greedy_one_row_of_all_others(name: str, shape: str, prompts: Callable) -> None:
    run, ours = both(name, METHODS[shape], prompts, 1, GREEDY)
    assert_same(ours.ids, run, ours.state)


@pytest.mark.slow
@pytest.mark.parametrize("method", LONG)
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_200_tokens(name: str, method: str, prompts: Callable) -> None:
    """Long enough that windows, chunks and blocks of the cache are crossed many times over."""
    call = {**GREEDY, "max_new_tokens": 200}
    run, ours = both(name, method, prompts, batch(name), call)
    assert_same(ours.ids, run, ours.state)
