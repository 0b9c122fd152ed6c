"""`mmspec run` over parquet: columns keep their types, pictures stand in the table, a run goes on."""

from pathlib import Path

import pytest

import mmspec
from mmspec.tables.reading import read_table
from mmspec.tables.run import here, run

pyarrow = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")


def test_parquet_in_parquet_out(tmp_path: Path) -> None:
    columns = {
        "id": [1, 2, 3],
        "prompt": ["The sea", None, "def main("],
        "max_new_tokens": [4, None, 6],
        "tags": [["a"], [], None],
    }
    parquet.write_table(pyarrow.table(columns), tmp_path / "t.parquet")
    rows = mmspec.Rows("mmspec/text-1m", method="prompt-lookup")
    given, out = read_table(tmp_path / "t.parquet"), tmp_path / "out"
    assert run(rows, given, out, here, batch=1, per_file=1).errors == 1
    parts = sorted(out.glob("part-*.parquet"))
    assert len({str(parquet.read_schema(part)) for part in parts}) == 1 and len(parts) == 3
    made = parquet.read_table(parts)
    assert made.select(list(columns)).to_pydict() == columns
    assert made.schema.field("seed").type == pyarrow.uint64() and made.schema.field("text").type == pyarrow.string()
    assert [text is None for text in made["text"].to_pylist()] == [False, True, False]
    assert run(rows, given, out, here, resume=True).computed == 0


def test_pictures_stand_in_the_table(tmp_path: Path) -> None:
    parquet.write_table(pyarrow.table({"id": ["a"], "prompt": ["fish"]}), tmp_path / "t.parquet")
    rows = mmspec.Rows("mmspec/emoji", guidance_scale=2.0)
    run(rows, read_table(tmp_path / "t.parquet"), tmp_path / "out", here)
    (picture,) = parquet.read_table(tmp_path / "out" / "part-000000.parquet")["image"].to_pylist()
    assert picture.startswith(b"\x89PNG")


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "t.parquet").write_bytes(b"PAR1 no more")
    with pytest.raises(ValueError, match=r"t\.parquet is no parquet file"):
        read_table(tmp_path / "t.parquet")
