"""`mmspec run`: every row of a table once, in parts; a stopped run goes on where it was."""

import csv
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

import mmspec
from mmspec.cli import boundary
from mmspec.cli.app import build
from mmspec.tables.reading import read_table
from mmspec.tables.run import here, run

PROMPTS = ["def main(", "The sea", "import os", "class A:", "Once upon", "for i in", "The king"]


@pytest.fixture(scope="module")
def rows() -> mmspec.Rows:
    return mmspec.Rows("mmspec/text-1m", method="prompt-lookup", max_new_tokens=4)


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "table.jsonl"
    path.write_text("".join(json.dumps({"id": f"r{i}", "prompt": prompt}) + "\n" for i, prompt in enumerate(PROMPTS)))
    return path


def command(*arguments: Any) -> int:
    import typer

    return boundary.run(lambda: typer.main.get_command(build())([str(a) for a in arguments], standalone_mode=False))


def written(out: Path) -> dict[str, dict[str, Any]]:
    lines = [json.loads(line) for part in sorted(out.glob("part-*")) for line in part.read_text().splitlines()]
    assert len(lines) == len({line["id"] for line in lines}), "a row stands twice"
    return {line["id"]: {name: value for name, value in line.items() if name != "report"} for line in lines}


def test_the_command_writes_every_row(table: Path, tmp_path: Path, rows: mmspec.Rows) -> None:
    out = tmp_path / "out"
    told = ("run", table, out, "--model", "mmspec/text-1m", "--method", "prompt-lookup", "--arg", "max_new_tokens=4")
    assert command(*told, "--rows", 3, "--rows-per-file", 2) == 0
    assert len(list(out.glob("part-*.jsonl"))) == 4
    for id, row in written(out).items():
        assert row["text"] == rows(_batch(id, row["prompt"]))["text"][0] and row["error"] is None
    summary = json.loads((out / "summary.json").read_text())
    assert (summary["rows"], summary["computed"], summary["errors"]) == (7, 7, 0)
    assert summary["calls"]["calls"] == 7 and summary["calls"]["emitted"] == 7 * 4


@pytest.mark.slow
def test_a_row_with_an_error_is_exit_code_1(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path, out = tmp_path / "table.csv", tmp_path / "out"
    path.write_text('id,prompt,max_new_tokens,note\n1,"The sea, again",4,007\n2,,,x\n')
    assert command("run", path, out, "--model", "mmspec/text-1m", "--arg", "max_new_tokens=6") == 1
    assert "1 rows have an error; the first: ValueError: the row has no input" in capfd.readouterr().err
    with (out / "part-000000.csv").open(newline="") as file:
        first, second = csv.DictReader(file)
    assert (first["id"], first["note"], first["error"]) == ("1", "007", "") and first["text"]
    assert json.loads(first["report"])["emitted"] == 4 and not second["text"]


def test_a_stopped_run_goes_on_and_computes_no_row_again(table: Path, tmp_path: Path, rows: mmspec.Rows) -> None:
    computed: list[str] = []

    def watched(rows: mmspec.Rows, batches: Iterable[Any]) -> Iterator[Mapping[str, Any]]:
        for batch in batches:
            computed.extend(batch["id"])
            yield rows(batch)

    def stopped(rows: mmspec.Rows, batches: Iterable[Any]) -> Iterator[Mapping[str, Any]]:
        for number, made in enumerate(watched(rows, batches)):
            if number == 2:
                raise KeyboardInterrupt
            yield made

    given, whole, out = read_table(table), tmp_path / "whole", tmp_path / "out"
    run(rows, given, whole, here)
    with pytest.raises(KeyboardInterrupt):
        run(rows, given, out, stopped, batch=2, per_file=3)
    assert computed == ["r0", "r1", "r2", "r3", "r4", "r5"] and len(written(out)) == 4
    with pytest.raises(ValueError, match=r"has 4 of 7 rows of this run; continue it with --resume"):
        run(rows, given, out, watched)
    del computed[:]
    assert run(rows, given, out, watched, batch=2, resume=True).computed == 3
    assert computed == ["r4", "r5", "r6"]
    assert written(out) == written(whole)
    del computed[:]
    again = run(rows, given, out, watched, resume=True)
    assert (again.computed, computed) == (0, []) and again.calls["emitted"] == 7 * 4


@pytest.mark.slow
def test_rows_that_come_twice_are_written_once(table: Path, tmp_path: Path, rows: mmspec.Rows) -> None:
    def twice(rows: mmspec.Rows, batches: Iterable[Any]) -> Iterator[Mapping[str, Any]]:
        for batch in batches:
            yield from (rows(batch), rows(batch))

    run(rows, read_table(table), tmp_path / "out", twice, batch=2)
    assert len(written(tmp_path / "out")) == 7


@pytest.mark.slow
def test_rows_that_do_not_come_back_are_an_error(table: Path, tmp_path: Path, rows: mmspec.Rows) -> None:
    with pytest.raises(RuntimeError, match="5 rows did not come back, such as 'r2'"):
        run(rows, read_table(table), tmp_path / "out", lambda rows, batches: [rows(next(iter(batches)))], batch=2)


def test_the_folder_of_another_run_is_refused(table: Path, tmp_path: Path, rows: mmspec.Rows) -> None:
    given, out = read_table(table), tmp_path / "out"
    run(rows, given, out, here)
    other = mmspec.Rows("mmspec/text-1m", method="prompt-lookup", max_new_tokens=9)
    with pytest.raises(ValueError, match="another recipe"):
        run(other, given, out, here, resume=True)
    given.rows[3]["prompt"] = "class B:"
    with pytest.raises(ValueError, match=r"another recipe \(table"):
        run(rows, given, out, here, resume=True)
    (tmp_path / "else").mkdir()
    (tmp_path / "else" / "letter.txt").write_text("Dear")
    with pytest.raises(ValueError, match="not those of a run"):
        run(rows, given, tmp_path / "else", here)


@pytest.mark.slow
def test_a_refused_method_leaves_the_folder_to_another(table: Path, tmp_path: Path, rows: mmspec.Rows) -> None:
    lossless = mmspec.Rows(
        "mmspec/text-1m", method="draft-model", loading={"drafter": "mmspec/text-1m", "rule": "rejection"}
    )
    with pytest.raises(ValueError, match="is lossless"):
        run(lossless, read_table(table), tmp_path / "out", here)
    assert run(rows, read_table(table), tmp_path / "out", here).computed == 7


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("t.jsonl", '{"id": 1}\n{"id": ', "line 2 of .* cannot be read"),
        ("t.jsonl", "[1]\n", "line 1 of .* cannot be read: it holds a list"),
        ("t.jsonl", "\n", "has no rows"),
        ("t.csv", "id,id\n1,2\n", "names the columns, each once"),
        ("t.csv", "id,prompt\n1,a,b\n", "line 2 .* more cells"),
        ("t.csv", "id,top_k\n1,many\n", "line 2: the column 'top_k' holds numbers, not 'many'"),
        ("t.txt", "", "ending in .parquet, .jsonl, .csv, not t.txt"),
    ],
)
def test_damaged_tables_are_named(tmp_path: Path, name: str, text: str, says: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(ValueError, match=says):
        read_table(tmp_path / name, numbers=["top_k"])


def _batch(id: str, prompt: str) -> dict[str, Any]:
    from mmspec.api.row_values import objects

    return {"id": objects([id]), "prompt": objects([prompt])}


@pytest.mark.slow
def test_pictures_are_files_that_the_column_names(tmp_path: Path) -> None:
    path, out = tmp_path / "table.jsonl", tmp_path / "out"
    path.write_text('{"id": "heart", "prompt": "red heart"}\n{"id": "../Fish", "prompt": "fish"}\n')
    rows = mmspec.Rows("mmspec/emoji", guidance_scale=2.0)
    run(rows, read_table(path), out, here)
    heart, fish = written(out)["heart"], written(out)["../Fish"]
    assert heart["image"] == "files/heart.png"
    assert (out / fish["image"]).parent == out / "files" and (out / fish["image"]).suffix == ".png"
    assert (out / heart["image"]).read_bytes() == rows(_batch("heart", "red heart"))["image"][0]
