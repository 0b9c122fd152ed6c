"""`mmspec demo continuous`, and what demos of pictures share: the sheet, the table, what rows are beside plain's."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
import typer
from PIL import Image
from typer.testing import CliRunner

from mmspec.bench.race import Run, Track
from mmspec.core.report import Bias
from mmspec.kits.pictures.demo import CELL, GAP, against, draw_demo, labelled, make_room, table_rows
from mmspec_continuous import demo

CAPTIONS = ("red heart", "blue cat")
SECONDS = {"plain": [3.0, 4.0, 7.0], "one slow picture": [1.0, 1.5, 20.0], "rounded": [0.12345] * 3}


def picture(shade):
    return Image.new("RGB", (8, 8), (shade, 0, 0))


def row(exactness, shades, bias=None, seconds=(1.0, 1.0, 1.0)):
    report = SimpleNamespace(exactness=exactness, bias=bias, emitted=16, rows=1, row_rounds=5)
    pairs = zip(shades, seconds, strict=True)
    return Track([[Run(took, [torch.tensor([[[shade] * 3]])], report)] for shade, took in pairs])


@pytest.fixture
def app(pipe, tmp_path, monkeypatch):
    pipe.save_pretrained(tmp_path / "model")
    monkeypatch.setattr(demo, "MODEL", str(tmp_path / "model"))
    monkeypatch.setattr(demo, "CAPTIONS", CAPTIONS)
    monkeypatch.chdir(tmp_path)
    made = typer.Typer()
    made.command()(demo.demo_continuous)
    return made


def test_the_demo_writes_a_sheet_and_says_what_it_took(app, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    run = CliRunner().invoke(app, [])
    assert run.exit_code == 0, run.output
    sheet = Image.open(tmp_path / "demo-output" / "continuous.png")
    assert sheet.width > 2 * CELL and sheet.height > len(demo.ROWS) * CELL
    for words in (
        "plain",
        "reflection",
        "acceptance length",
        "lossless",
        "others, of the same distribution",
        "continuous.png",
    ):
        assert words in run.output, run.output
    assert " 30 " in run.output, "passes of two pictures of 16 tokens"


def test_the_seconds_of_the_table_give_its_speed_ups():
    tracks = {name: row("lossless", (0, 0, 0), seconds=seconds) for name, seconds in SECONDS.items()}
    shown = [(seconds, speedup) for *_, seconds, speedup, _ in table_rows(tracks)]
    assert shown == [("4.00", "1.00"), ("1.50", "2.67"), ("0.123", "32.52")], "quotients of what is printed"


def test_mistakes_are_told_before_the_model_is_loaded(app, tmp_path, monkeypatch):
    monkeypatch.setattr(demo, "MODEL", "mmspec/no-such-model")
    run = CliRunner().invoke(app, ["-o", str(tmp_path / "new" / "out.txt")])
    assert "does not end in a format of pictures" in str(run.exception)
    assert not (tmp_path / "new").exists(), "nothing is made for it"
    with pytest.raises(ValueError, match="is a folder"):
        (tmp_path / "out.png").mkdir()
        make_room(tmp_path / "out.png")


def test_rows_are_drawn_with_the_same_seeds_one_at_a_time(pipe, tmp_path):
    own = type(pipe)(**pipe.components)
    rows = draw_demo(own, {"plain": {}, "again": {"method": "plain"}}, CAPTIONS, 3.0, tmp_path / "out.png")
    plain, again = rows.values()
    assert [run.report.row_rounds for run in plain.every] == [15, 15]
    assert against(again, plain) == "equal to plain's"
    alone = own.use("plain")(CAPTIONS[1], guidance_scale=3.0, seed=1).images[0]
    assert np.array_equal(plain.every[1].units[0], alone)


@pytest.mark.parametrize(
    ("exactness", "shades", "bias", "says"),
    [
        ("invariant", (1, 2, 3), None, "equal to plain's"),
        ("invariant", (1, 2, 9), None, "2 of 3 equal to plain's"),
        ("lossless", (7, 8, 9), None, "others, of the same distribution"),
        ("lossy", (7, 8, 9), None, "others, of another distribution"),
        ("lossy", (7, 8, 3), Bias(0.25, 4.0, 0.1), "of another distribution: 4.0 of 16 units expected to be altered"),
    ],
)
def test_what_a_row_is_beside_plain(exactness, shades, bias, says):
    assert against(row(exactness, shades, bias), row("invariant", (1, 2, 3))) == says


def test_pictures_stand_under_their_captions_and_beside_their_names():
    shades = ((10, 60, 110), (160, 210, 250))
    made = labelled(
        [[picture(s) for s in line] for line in shades], ["plain", "a longer name"], ["one", "two " * 30, ""]
    )
    colours = np.asarray(made)
    left = made.width - 3 * (CELL + GAP)
    top = made.height - 2 * (CELL + GAP)
    for line, drawn in enumerate(shades):
        for column, shade in enumerate(drawn):
            y, x = top + line * (CELL + GAP), left + column * (CELL + GAP)
            assert (colours[y : y + CELL, x : x + CELL] == (shade, 0, 0)).all()
    assert (colours[:top, left : left + CELL] < 200).any() and (colours[top:, :left] < 200).any(), "labels"
    assert (colours[:GAP] == 255).all(), "captions of several lines have room"
