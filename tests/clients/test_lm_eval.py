"""EleutherAI's evaluation harness: batches of several lengths, stop sequences, likelihoods beside generation."""

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("lm_eval")
from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM

PROMPTS = (
    "def area(radius):",
    "class Point:\n    def __init__(self, x, y):",
    "import os\n\nfor name in",
    "x = [1, 2, 3]\n",
)


def asked(kind: str, arguments: list[tuple[Any, ...]]) -> list[Instance]:
    return [Instance(kind, {}, each, i) for i, each in enumerate(arguments)]


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("sampling", [{"do_sample": False}, {"do_sample": True, "temperature": 0.8}])
def test_generate_until(model: Any, tokenizer: Any, both: Callable, batch: int, sampling: dict[str, Any]) -> None:
    harness = HFLM(pretrained=model, tokenizer=tokenizer, batch_size=batch)
    until = {"until": ["\n\n", "return"], "max_gen_toks": 40, **sampling}
    calls = asked("generate_until", [(prompt, until) for prompt in PROMPTS])
    report = both(model, lambda: harness.generate_until(calls, disable_tqdm=True))
    assert report.drafted > 0 or sampling["do_sample"], "only what was drawn may leave nothing to draft from"


def test_likelihoods_are_untouched(model: Any, tokenizer: Any) -> None:
    import mmspec

    harness = HFLM(pretrained=model, tokenizer=tokenizer, batch_size=2)
    calls = asked("loglikelihood", [(prompt, " return x") for prompt in PROMPTS])
    right = harness.loglikelihood(calls, disable_tqdm=True)
    with mmspec.enable(model, "prompt-lookup"):
        assert harness.loglikelihood(calls, disable_tqdm=True) == right
