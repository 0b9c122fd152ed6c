"""`mmspec run --ray`: the rows of a cluster are those of one machine, to the byte, with a worker killed, too.

`ray.init` takes seconds and every worker loads a pipeline, so that all tests share one cluster.
"""

import json
import os
import signal
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

import mmspec
from mmspec.tables.reading import Table
from mmspec.tables.run import here, run

ray = pytest.importorskip("ray")

ROWS = 64
WORDS = ("red heart", "fish", "star", "princess", "dog", "blue car", "apple", "moon")
TEXT = ("mmspec/text-1m", {"method": "prompt-lookup", "max_new_tokens": 24})
EMOJI = ("mmspec/emoji", {"method": "gs-sjd", "guidance_scale": 2.0})
CUTS = ((1, 5), (2, 8), (2, 3))
"""Workers and rows of a batch."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    os.environ.update(RAY_AUTH_MODE="disabled", RAY_USAGE_STATS_ENABLED="0")
    ray.init(num_cpus=4, object_store_memory=2**29, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()


@pytest.fixture(scope="module", params=[TEXT, EMOJI], ids=["text", "emoji"])
def kind(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The function that computes the rows, their table, and the rows as one machine computes them."""
    name, how = request.param
    table = Table(".jsonl", ["id", "prompt"], [{"id": f"r{i}", "prompt": WORDS[i % 8]} for i in range(ROWS)])
    rows, out = mmspec.Rows(name, **how), tmp_path_factory.mktemp("runs") / "here"
    run(rows, table, out, here)
    return rows, table, content(out)


def content(out: Path) -> dict[str, Any]:
    """Every row, without its report; pictures by their bytes."""
    found: dict[str, Any] = {}
    for part in out.glob("part-*"):
        for line in part.read_text().splitlines():
            row = json.loads(line)
            assert row["id"] not in found, "a row stands twice"
            picture = row.get("image")
            found[row["id"]] = row["seed"], row["error"], row.get("text"), picture and (out / picture).read_bytes()
    assert all(error is None for _, error, *_ in found.values())
    return found


@pytest.mark.parametrize(("workers", "batch"), CUTS)
def test_the_rows_of_a_cluster_are_those_of_one_machine(
    cluster: None, kind: Any, tmp_path: Path, workers: int, batch: int
) -> None:
    from mmspec.tables.cluster import on_ray

    rows, table, right = kind
    run(rows, table, tmp_path / "out", on_ray("auto", workers, batch), batch=batch)
    assert content(tmp_path / "out") == right and len(right) == ROWS


@pytest.mark.parametrize("kind", [TEXT], ids=["text"], indirect=True)
def test_a_worker_that_is_killed_costs_no_row(cluster: None, kind: Any, tmp_path: Path) -> None:
    from mmspec.tables.cluster import on_ray

    rows, table, right = kind
    killed, began = tmp_path / "killed", tmp_path / "began"
    began.mkdir()

    def worker(rows: mmspec.Rows) -> Any:
        def compute(batch: Any) -> Any:
            (began / f"{os.getpid()}-{batch['id'][0]}").touch()
            if len(list(began.iterdir())) > 3 and not killed.exists():
                killed.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            return rows(batch)

        return compute

    run(rows, table, tmp_path / "out", on_ray("auto", 2, 3, worker), batch=3)
    assert killed.exists() and content(tmp_path / "out") == right


@pytest.mark.parametrize("kind", [TEXT], ids=["text"], indirect=True)
def test_a_cluster_goes_on_where_a_machine_stopped(cluster: None, kind: Any, tmp_path: Path) -> None:
    from mmspec.tables.cluster import on_ray

    rows, table, right = kind
    asked, began = [], tmp_path / "began"
    began.mkdir()

    def stopped(rows: mmspec.Rows, batches: Iterable[Any]) -> Iterator[Mapping[str, Any]]:
        for batch in batches:
            if len(asked) >= 8:
                raise KeyboardInterrupt
            asked.extend(batch["id"])
            yield rows(batch)

    def worker(rows: mmspec.Rows) -> Any:
        def compute(batch: Any) -> Any:
            for id in batch["id"]:
                (began / id).touch()
            return rows(batch)

        return compute

    with pytest.raises(KeyboardInterrupt):
        run(rows, table, tmp_path / "out", stopped, batch=4)
    summary = run(rows, table, tmp_path / "out", on_ray("auto", 2, 4, worker), batch=4, resume=True)
    assert summary.computed == ROWS - 8 == len(list(began.iterdir()))
    assert not set(asked) & {path.name for path in began.iterdir()}
    assert content(tmp_path / "out") == right


def test_what_a_worker_refuses_is_said_in_one_line(cluster: None, tmp_path: Path) -> None:
    from mmspec.tables.cluster import on_ray

    table = Table(".jsonl", ["id", "prompt"], [{"id": "a", "prompt": "fish"}])
    rows = mmspec.Rows("mmspec/emoji-continuous")
    with pytest.raises(ValueError, match=r"^the method reflection is lossless: [^\n]*$"):
        run(rows, table, tmp_path / "out", on_ray("auto", 1, 4))
