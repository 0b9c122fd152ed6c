"""The kit for a rented GPU (`tools/gpu/`), dry: its steps on the CPU at tiny sizes, and its table."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tools.gpu import summary

ROOT = Path(__file__).parents[2]
STEPS = {
    "figures": ["--only", "llama-1b"],
    "equality": [],
    "recurrent": [],
    "methods": ["--only", "eagle"],
    "profile_round": [],
    "pictures": ["--only", "large-default"],
    "repeat": [],
    "real": [],
}


def environment() -> dict[str, str]:
    path = os.pathsep.join(map(str, (ROOT, ROOT / "plugins", os.environ.get("PYTHONPATH", ""))))
    return {**os.environ, "PYTHONPATH": path, "DRY": "1", "STEPS": "smoke", "PYTHON": sys.executable}


def run(command: list[str], out: Path) -> list[dict[str, Any]]:
    """The lines of a command, none of which tells of a failure."""
    done = subprocess.run(command, cwd=ROOT, env=environment() | {"OUT": str(out)}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    lines = summary.read(out)
    assert lines and not any({"failed", "skipped"} & set(line) for line in lines), lines
    return lines


@pytest.mark.slow
@pytest.mark.parametrize("step", STEPS)
def test_a_step(step: str, tmp_path: Path) -> None:
    modes = [] if step == "pictures" else ["--modes", "default"]
    command = [sys.executable, "-m", f"tools.gpu.{step}", "--dry", "--out", str(tmp_path), *modes, *STEPS[step]]
    lines = run(command, tmp_path)
    for line in lines:
        assert line.get("equal", 1) == line.get("texts", line.get("tries", 1)), line
    summary.main(tmp_path)


@pytest.mark.slow
def test_a_lease(tmp_path: Path) -> None:
    lines = run(["bash", "tools/gpu/lease.sh"], tmp_path)
    assert {line["mode"] for line in lines if "equals_plain" in line} == {"default", "compiled", "eager"}
    assert all(line["equals_plain"] for line in lines if "equals_plain" in line)


def test_the_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What failed comes first; a compiled contestant that was not compiled is told."""
    about = {"t": 1.0, "section": "time", "step": "figures", "model": "m", "contestant": "plain, compiled"}
    timed = {"ms_per_unit": 2.5, "ms_per_round": 2.5, "captured": False, "seconds": 0.1}
    found = [about | {"failed": "ValueError: no", "at": "x.py:1"}, about | timed]
    (tmp_path / "lines.jsonl").write_text("".join(json.dumps(line) + "\n" for line in found))
    summary.main(tmp_path)
    out = capsys.readouterr().out
    assert out.index("ValueError: no") < out.index("2.5") and "NOT COMPILED" in out
