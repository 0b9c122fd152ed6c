"""The roofline of `python -m tools.bench core`: a point for every pass, below the limits of the machine."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tools.bench.__main__ import build
from tools.bench.roofline import points_of

PASSES = [{"section": "pass", "shape": "llama-1b", "ms": 2.0 * n, "operations": 6e9 * n, "bytes": 2e9} for n in (1, 8)]
MACHINE = {"section": "machine", "device": "a machine", "bytes_per_second": 2e12, "operations_per_second": 4e14}


def test_a_point_is_a_pass() -> None:
    skipped = {"section": "pass", "shape": "llama-1b", "why": "out of memory"}
    assert points_of([MACHINE, *PASSES, skipped], "llama-1b") == [(3.0, 3e12), (24.0, 3e12)]


def test_it_is_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    lines, out = tmp_path / "core.jsonl", tmp_path / "core.png"
    lines.write_text("".join(json.dumps(line) + "\n" for line in (MACHINE, *PASSES)))
    assert CliRunner().invoke(build(), ["roofline", str(lines), "-o", str(out)]).exit_code == 0
    assert out.stat().st_size > 10_000
