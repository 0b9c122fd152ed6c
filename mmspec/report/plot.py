"""The figure of a benchmark: speed of every method as a multiple of the fastest peer's, by setting."""

import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from mmspec.files import save_whole
from mmspec.report import views
from mmspec.report.result import Result, ratios_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SUFFIXES = (".png", ".svg")


class Bar(NamedTuple):
    setting: str  # the setting, by which bars are grouped
    name: str  # name of a method or a peer
    ours: bool  # whether it is a method of mmspec
    ratios: list[float]  # seconds of the base / own seconds, one per repeat
    note: str  # text above the bar: the acceptance length

    @property
    def height(self) -> float:
        return statistics.median(self.ratios)


def save(result: Result, path: Path) -> None:
    """Draw the figure into a PNG or SVG file, which is written whole or not at all."""
    refuse(path)
    drawn = figure(result)
    # The same result gives the same file: no date in it, and no random ids.
    settings: dict[str, Any] = {"format": path.suffix[1:], "metadata": {"Date": None} if path.suffix == ".svg" else {}}
    from matplotlib import rc_context

    with rc_context({"svg.hashsalt": "mmspec", "svg.fonttype": "none"}):
        save_whole(path, lambda side: drawn.savefig(side, dpi=150, **settings))


def refuse(path: Path) -> None:
    """Refuse a file that could not be drawn, before anything is measured."""
    if path.suffix not in SUFFIXES:
        raise ValueError(f"a plot is a {' or '.join(SUFFIXES)} file, not {path.name!r}")
    canvas()


def figure(result: Result) -> "Figure":
    """Bars grouped by setting, with whiskers from the smallest to the largest repeat and a line at 1."""
    bars = list(bars_of(result))
    settings = list(dict.fromkeys(bar.setting for bar in bars))
    names = list(dict.fromkeys((bar.name, bar.ours) for bar in bars))
    drawn = canvas()(figsize=(min(14.0, max(6.0, 0.45 * len(bars) + 2)), 4.5), layout="constrained")
    axes = drawn.subplots()
    width = 0.84 / max(1, len(names))
    for place, (name, ours) in enumerate(names):
        own = [bar for bar in bars if (bar.name, bar.ours) == (name, ours)]
        at = [settings.index(bar.setting) + (place - (len(names) - 1) / 2) * width for bar in own]
        _draw(axes, own, at, width, {"color": f"C{place % 10}"} if ours else _outlined(place))
    axes.axhline(1, color="black", linewidth=1, linestyle="--")
    axes.set_xticks(range(len(settings)), settings)
    axes.set_xlim(-0.5, len(settings) - 0.5)
    bases = dict.fromkeys(views.base_of(result, setting)[0] for setting in settings)
    axes.set_ylabel(f"times as fast as {' or '.join(bases)}")
    axes.set_title(f"{result.model} · {result.device}\nnumbers on bars: acceptance length", fontsize=9)
    axes.margins(y=0.12)
    axes.legend(fontsize=7, ncols=4, loc="upper center", bbox_to_anchor=(0.5, -0.1), frameon=False)
    return drawn


def canvas() -> "type[Figure]":
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ValueError("plots need matplotlib: pip install 'mmspec[bench]'") from None
    return Figure


def bars_of(result: Result) -> Iterator[Bar]:
    """The bars: methods with real drafts at batch 1, then peers."""
    for setting in result.settings:
        rows = views.real(result, setting)
        if not rows:
            continue
        against, base = views.base_of(result, setting)
        for row in rows:
            name = row.method if row.exactness in views.HONEST else f"{row.method} ({row.exactness})"
            yield Bar(setting, name, True, ratios_of(base, row.repeats_s), f"{row.acceptance_length:.1f}")
        for peer in views.peers_of(result, setting):
            if peer != against:  # which is the line at 1
                own = result.peers[f"{setting} / {peer}"].repeats_s
                yield Bar(setting, peer, False, ratios_of(base, own), "")


def _draw(axes: Any, bars: list[Bar], at: list[float], width: float, look: dict[str, str]) -> None:
    heights = [bar.height for bar in bars]
    low = [bar.height - min(bar.ratios) for bar in bars]
    high = [max(bar.ratios) - bar.height for bar in bars]
    whiskers = {"linewidth": 0.8, "capsize": 2}
    axes.bar(at, heights, width, yerr=(low, high), label=bars[0].name, error_kw=whiskers, **look)
    for x, bar in zip(at, bars, strict=True):
        axes.annotate(bar.note, (x, max(bar.ratios)), (0, 2), textcoords="offset points", ha="center", fontsize=6)


def _outlined(place: int) -> dict[str, str]:
    return {"facecolor": "white", "edgecolor": "grey", "hatch": ("//", "..", "xx", "--")[place % 4]}
