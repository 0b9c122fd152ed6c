"""outlines: its processors follow an automaton from call to call, so such calls run without drafts and say so."""

from collections.abc import Callable
from typing import Any, Literal

import pytest

outlines = pytest.importorskip("outlines")


@pytest.mark.parametrize("wanted", ["regex", "choice"])
@pytest.mark.filterwarnings("ignore:this call runs without drafts")
def test_constrained(model: Any, tokenizer: Any, both: Callable, wanted: str) -> None:
    client = outlines.from_transformers(model, tokenizer)
    kind = outlines.types.regex(r"[a-z]{3,9} = [0-9]{1,4}") if wanted == "regex" else Literal["radius", "area", "x"]
    both(model, lambda: client("result: ", kind, max_new_tokens=24, do_sample=True))


def test_free_text(model: Any, tokenizer: Any, both: Callable) -> None:
    client = outlines.from_transformers(model, tokenizer)
    assert both(model, lambda: client("def area(radius):", max_new_tokens=40)).drafted > 0


def test_a_constrained_call_says_that_it_runs_without_drafts(model: Any, tokenizer: Any) -> None:
    import mmspec

    client = outlines.from_transformers(model, tokenizer)
    with mmspec.enable(model, "prompt-lookup"), pytest.warns(UserWarning, match="runs without drafts"):
        client("result: ", outlines.types.regex("[0-9]{4}"), max_new_tokens=8)
