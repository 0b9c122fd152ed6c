"""A shipped folder is written whole or not at all."""

import json

import pytest

import mmspec
from mmspec.kits.pictures.ship import ship


def test_it_loads_with_its_facts_beside_it(tiny, tmp_path):
    folder = tmp_path / "drawn"
    folder.mkdir()
    (folder / "old").write_text("of an earlier training")
    ship(tiny, {"parameters": 3}, folder, also=lambda side: (side / "more").write_text("1"))
    assert json.loads((folder / "training.json").read_text()) == {"parameters": 3}
    assert (folder / "more").exists() and not (folder / "old").exists()
    assert type(mmspec.Pipeline.from_pretrained(folder)) is type(tiny)


def test_what_fails_leaves_the_old_one(tiny, tmp_path):
    folder = tmp_path / "drawn"
    folder.mkdir()
    (folder / "old").write_text("of an earlier training")

    def fail(side):
        raise OSError("no space left")

    with pytest.raises(OSError, match="no space"):
        ship(tiny, {}, folder, also=fail)
    assert [path.name for path in folder.iterdir()] == ["old"]
