"""The first examples of the README, on the model that `mmspec fetch smollm2` brings."""

import contextlib
import io
import re
from pathlib import Path
from typing import Any

import pytest

from tests.support.pages import blocks

pytestmark = pytest.mark.real

FIRST, SECOND, _ = blocks(Path(__file__).parents[2] / "README.md")


@pytest.fixture(scope="module")
def first() -> tuple[dict[str, Any], str]:
    """Names and output of the first example."""
    names: dict[str, Any] = {}
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(FIRST, names)
    return names, printed.getvalue()


def test_the_first_example_gains_and_prints_what_it_says(first: tuple[dict[str, Any], str]) -> None:
    """Passes are counted, so no machine's speed decides."""
    names, printed = first
    units, passes = re.search(r"report\)  # (\d+) units in (\d+) passes", FIRST).groups()
    assert f"{units} units in {passes} passes" in printed and int(units) > 1.3 * int(passes)
    plain = names["model"].generate(**names["inputs"], max_new_tokens=60, do_sample=False)
    assert names["out"][0, : plain.shape[1]].tolist() == plain[0].tolist()


def test_the_second_example_draws_the_stock_sample_in_the_passes_that_it_says(
    first: tuple[dict[str, Any], str],
) -> None:
    names = dict(first[0])
    exec(SECOND, names)
    passes = int(re.search(r"from (\d+) passes of the model instead of 200", SECOND)[1])
    names["torch"].manual_seed(0)
    how = {"drafter": "mmspec/smollm2-eagle3", "k": 2, "form": "chain"}
    with names["mmspec"].enable(names["model"], "eagle", **how) as spec:
        again = names["model"].generate(**names["inputs"], max_new_tokens=200, do_sample=True, temperature=0.3)
    assert again.tolist() == names["ours"].tolist() and abs(spec.report.rounds - passes) <= 1 and passes < 150
