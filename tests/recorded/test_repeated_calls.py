"""A call that is repeated gives the same numbers to the bit, from a process's first one on, whatever else runs.

Nothing that is timed may decide how a product is computed; `tests/text/test_linear.py` has the rule that decides.
"""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.recorded.test_recorded_outputs import MODELS

SCRIPT = """
import sys
import torch, mmspec
from tests.recorded.test_recorded_outputs import MODELS
name = sys.argv[1]
pipe = mmspec.Pipeline.from_pretrained(f"mmspec/{name}", policy="fixed")
pipe.set_progress_bar_config(disable=True)
first = MODELS[name][0](pipe)[0]
print([torch.equal(MODELS[name][0](pipe)[0], first) for _ in range(4)])
"""


@pytest.fixture(params=["at rest", pytest.param("under load", marks=pytest.mark.slow)])
def load(request: pytest.FixtureRequest) -> Iterator[None]:
    busy = [
        subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2 * (request.param != "at rest"))
    ]
    yield
    for process in busy:
        process.kill()
        process.wait()


@pytest.mark.usefixtures("load")
@pytest.mark.parametrize(
    "name", [n if n == "emoji-continuous" else pytest.param(n, marks=pytest.mark.slow) for n in MODELS]
)
def test_five_calls_of_a_fresh_process_are_one(name: str) -> None:
    run = subprocess.run(
        [sys.executable, "-c", SCRIPT, name], capture_output=True, text=True, cwd=Path(__file__).parents[2], check=False
    )
    assert run.stdout.strip() == str([True] * 4), run.stderr
