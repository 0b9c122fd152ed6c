"""The figure shows every method and peer with its spread; its file is whole or not there."""

import sys
from pathlib import Path

import pytest

from mmspec.report import plot
from tools.report.whole import WholeResult


def test_bars_are_paired_ratios_with_their_spread(result: WholeResult) -> None:
    bars = {(bar.setting, bar.name): bar for bar in plot.bars_of(result)}
    lookup = bars["code, greedy", "prompt-lookup"]
    assert (
        lookup.height == pytest.approx(1.142857) and max(lookup.ratios) == pytest.approx(1.2) and lookup.note == "2.0"
    )
    assert bars["prose, T = 0.8", "prompt-lookup"].height < 1
    assert ("code, greedy", "daring (lossy)") in bars and ("code, greedy", "generate") in bars
    assert ("code, greedy", "prompt lookup") not in bars and ("prose, T = 0.8", "generate") not in bars  # the line
    assert not {"static", "oracle"} & {name for _, name in bars}  # not run, not a claim


def test_the_figure_says_what_it_shows(result: WholeResult) -> None:
    (axes,) = plot.figure(result).axes
    assert axes.get_ylabel() == "times as fast as prompt lookup or generate"
    assert [label.get_text() for label in axes.get_xticklabels()] == ["code, greedy", "prose, T = 0.8"]
    assert any(list(line.get_ydata()) == [1, 1] for line in axes.lines)
    assert len(axes.containers) >= 5 and "2.0" in [text.get_text() for text in axes.texts]


@pytest.mark.parametrize("suffix", [".png", ".svg"])
def test_files(result: WholeResult, tmp_path: Path, suffix: str) -> None:
    for name in ("one", "two"):
        plot.save(result, tmp_path / f"{name}{suffix}")
    first = (tmp_path / f"one{suffix}").read_bytes()
    assert first.startswith(b"\x89PNG" if suffix == ".png" else b"<?xml") and len(first) > 5000
    assert first == (tmp_path / f"two{suffix}").read_bytes() and len(list(tmp_path.iterdir())) == 2


def test_a_failure_leaves_the_old_file(result: WholeResult, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from matplotlib.figure import Figure

    def fails(self, path: Path, **settings) -> None:
        path.write_text("half")
        raise OSError("disk full")

    (tmp_path / "plot.png").write_text("old")
    monkeypatch.setattr(Figure, "savefig", fails)
    with pytest.raises(OSError, match="disk full"):
        plot.save(result, tmp_path / "plot.png")
    assert [(file.name, file.read_text()) for file in tmp_path.iterdir()] == [("plot.png", "old")]


def test_mistakes_teach(result: WholeResult, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match=r"a plot is a \.png or \.svg file, not 'plot\.pdf'"):
        plot.save(result, tmp_path / "plot.pdf")
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ValueError, match=r"pip install 'mmspec\[bench\]'"):
        plot.save(result, tmp_path / "plot.png")
