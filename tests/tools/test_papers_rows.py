"""`python -m tools.bench papers`: a row's cells on a tiny workload, and what the command refuses."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tools.bench import papers
from tools.bench.__main__ import build
from tools.bench.papers import ROWS, Cell, Row, code, measured
from tools.report import lines


def test_cells_of_a_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`by itself` forgets; a call of what remembers is drafted by earlier ones, here by the same prompt's."""

    def twice(plain, tokenizer, new):
        first = next(code(plain, tokenizer, new))[:, :20]
        yield from (first, first)

    methods = {"suffix": {"k": 16}, "by itself": {"method": "suffix", "k": 16, "remember": 0}}
    row = Row("mmspec/text-1m", methods, twice, new=24)
    cells = {cell.method: cell for cell in measured("a row", row, 24)}
    assert list(cells) == ["plain", *methods] and all(cell.same == 1 and cell.tokens == 48 for cell in cells.values())
    assert cells["plain"].acceptance_length == 1 and cells["plain"].passes == 46
    assert cells["suffix"].passes < cells["by itself"].passes
    monkeypatch.setattr(papers, "ROWS", {"a row": row, "another": row})
    path = tmp_path / "rows.jsonl"
    for name in ("a row", "another", "a row"):
        assert CliRunner().invoke(build(), ["papers", "--row", name, "--json", str(path)]).exit_code == 0
    read = lines.load_lines(path, Cell, "x", lambda _: None)
    assert [cell.row for cell in read] == ["another"] * 3 + ["a row"] * 3
    assert json.loads(path.read_text().splitlines()[0])["method"] == "plain"


def test_another_row_is_refused_before_anything_is_loaded() -> None:
    refused = CliRunner().invoke(build(), ["papers", "--row", "sufix"])
    assert refused.exit_code and next(iter(ROWS)) in str(refused.exception)
