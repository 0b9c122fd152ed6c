"""`examples/ray_batch.py`: every prompt has its picture, which is the one of its id and seed."""

import io
import runpy
import sys
from pathlib import Path

import pytest
from PIL import Image

import mmspec

ray = pytest.importorskip("ray")
parquet = pytest.importorskip("pyarrow.parquet")
SCRIPT = Path(__file__).parents[2] / "examples" / "ray_batch.py"


@pytest.mark.engines
def test_a_table_is_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["ray_batch.py", str(tmp_path / "out")])
    script = runpy.run_path(str(SCRIPT), run_name="__main__")
    ray.shutdown()
    assert f"{len(script['PROMPTS'])} pictures in" in capsys.readouterr().out
    rows = {
        row["id"]: row for file in (tmp_path / "out").glob("*.parquet") for row in parquet.read_table(file).to_pylist()
    }
    assert [rows[str(number)]["prompt"] for number in range(len(rows))] == script["PROMPTS"]
    one = rows["2"]
    again = mmspec.Rows("mmspec/emoji", method="plain", guidance_scale=4.0)({"id": ["2"], "prompt": [one["prompt"]]})
    drawn, expected = (Image.open(io.BytesIO(png)) for png in (one["image"], again["image"][0]))
    assert drawn.tobytes() == expected.tobytes() and one["method"] == "gs-sjd"
