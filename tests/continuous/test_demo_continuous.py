"""`mmspec demo continuous`, and what demos of pictures share: the sheet, the table, what rows are beside plain's."""

from types import SimpleNamespace

import numpy as np
import pytest
import typer
from PIL import Image
from typer.testing import CliRunner

from mmspec.core.report import Bias
from mmspec.kits.pictures.demo import CELL, GAP, DemoRow, _table, against, draw_demo, labelled, make_room
from mmspec_continuous import demo

CAPTIONS = ("red heart", "blue cat")
SECONDS = {"plain": [3.0, 4.0, 7.0], "one slow picture": [1.0, 1.5, 20.0]}


def picture(shade):
    return Image.new("RGB", (8, 8), (shade, 0, 0))


def row(name, exactness, shades, bias=None):
    report = SimpleNamespace(exactness=exactness, bias=bias, emitted=16)
    return DemoRow(name, [picture(shade) for shade in shades], [report] * len(shades), [1.0] * len(shades))


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
    report = SimpleNamespace(exactness="lossless", bias=None, emitted=16, rows=1, row_rounds=5)
    rows = [DemoRow(name, [picture(0)] * 3, [report] * 3, seconds) for name, seconds in SECONDS.items()]
    for *_, seconds, speedup, _ in _table(rows):
        assert float(speedup) == pytest.approx(sum(SECONDS["plain"]) / float(seconds), abs=0.01)


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
    plain, again = rows
    assert len(plain.pictures) == len(plain.seconds) == 2 and [r.row_rounds for r in plain.reports] == [15, 15]
    assert against(again, plain) == "those of plain"
    alone = own.use("plain")(CAPTIONS[1], guidance_scale=3.0, seed=1).images[0]
    assert np.array_equal(plain.pictures[1], alone)


@pytest.mark.parametrize(
    ("exactness", "shades", "bias", "says"),
    [
        ("invariant", (1, 2, 3), None, "those of plain"),
        ("invariant", (1, 2, 9), None, "2 of 3 those of plain"),
        ("lossless", (7, 8, 9), None, "others, of the same distribution"),
        ("lossy", (7, 8, 9), None, "others, of another distribution"),
        ("lossy", (7, 8, 3), Bias(0.25, 4.0, 0.1), "of another distribution: 4.0 of 16 units expected to be altered"),
    ],
)
def test_what_a_row_is_beside_plain(exactness, shades, bias, says):
    assert against(row("own", exactness, shades, bias), row("plain", "invariant", (1, 2, 3))) == says


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
