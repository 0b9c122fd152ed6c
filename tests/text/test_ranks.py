"""Tensor parallel models: two processes with half of a Llama each write what one process writes, or say why not."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from transformers import LlamaConfig

from mmspec.testing.tiny_models import SIZES
from tests.support.random_models import noisy, random_model
from tests.support.two_ranks import METHODS, methods


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """The texts of one process, and of each of two ranks."""
    folder = tmp_path_factory.mktemp("ranks")
    model = random_model(LlamaConfig(**{**SIZES, "num_key_value_heads": 2}), head=8.0)
    small = noisy(model, 0.1)
    model.save_pretrained(folder / "model")
    small.save_pretrained(folder / "small")
    common = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2"}
    running = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.support.two_ranks", str(folder)],
            env={**common, "RANK": str(rank), "LOCAL_RANK": str(rank), "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=Path(__file__).parents[2],
        )
        for rank in range(2)
    ]
    try:
        printed = [process.communicate(timeout=240)[0] for process in running]
    finally:
        for process in running:
            process.kill()
    assert [process.returncode for process in running] == [0, 0], "\n".join(printed)
    made = [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]
    return [methods(model, lambda: small), *made]


@pytest.mark.slow
def test_ranks_write_what_one_process_writes(ranks: list[dict[str, Any]]) -> None:
    one, *both = ranks
    for rank in both:
        assert rank["group"] == "DTensor", "the model is not cut"
        for method in METHODS:
            assert rank[method] == one[method], f"{method}: ids, rounds and faults"
    assert one["draft-model"][1] < one["plain"][1]


@pytest.mark.slow
def test_what_differs_between_ranks_changes_no_output(ranks: list[dict[str, Any]]) -> None:
    """Budgets by time, drafters that fail on one rank, compiled rounds, and a call after refused ones."""
    one, *both = ranks
    for case in ("goodput", "fault on 0", "fault on 1", "compiled", "after"):
        for rank in both:
            assert rank[case][0] == one["plain"][0], case
        assert both[0][case][1] == both[1][case][1], "they did the same rounds"
    assert [rank["fault on 0"][2] > 0 for rank in both] == [True, False]
    assert [rank["fault on 1"][2] > 0 for rank in both] == [False, True]


DIFFERENT = ("prompts", "length", "rows", "limit", "method")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "message"),
    [
        ("philox", "ranks 0 and 1 of a tensor-parallel model drew different units: they need the same seed"),
        ("states", "ranks 0 and 1 of a tensor-parallel model drew different units: they need the same seed"),
        ("stopped", "ranks 0 and 1 of a tensor-parallel model drew different units"),
        *((case, "ranks 0 and 1 of a tensor-parallel model began different calls") for case in DIFFERENT),
        ("own budgets", "the ranks draft together here, and under Goodput each would measure another budget"),
        ("rule", "drafts travel without their distributions, which Rejection reads; use the rule 'match'"),
    ],
)
def test_all_ranks_say_why_they_stop(ranks: list[dict[str, Any]], case: str, message: str) -> None:
    for rank in ranks[1:]:
        assert message in rank[case], case
