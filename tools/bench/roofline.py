"""`python -m tools.bench roofline`: operations per second of the passes of `core`, over those per byte."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from mmspec.bench.command import check_output_folders
from mmspec.cli.places import text_of
from mmspec.files import save_whole
from mmspec.report.plot import canvas


def roofline(
    lines: Annotated[Path, typer.Argument(help="What `python -m tools.bench core --out` wrote.")],
    out: Annotated[Path, typer.Option("-o", "--out", help="Where to draw it (.png, .svg).")] = Path("roofline.png"),
) -> None:
    """Draw the passes of all shapes below the limits of the machine."""
    check_output_folders(None, out)
    save([json.loads(line) for line in text_of(lines).splitlines()], out)


def save(lines: Sequence[dict[str, Any]], path: Path) -> None:
    """Draw the passes of all shapes below the limits of the machine, into a PNG or SVG file.

    Args:
        lines: The lines of the benchmark.
        path: The file; it is written whole or not at all.

    Raises:
        ValueError: matplotlib is not installed.
    """
    drawn = canvas()(figsize=(8.0, 5.0), layout="constrained")
    axes = drawn.subplots()
    points = {shape: points_of(lines, shape) for shape in dict.fromkeys(line.get("shape") for line in lines)}
    for place, (shape, own) in enumerate((shape, own) for shape, own in points.items() if own):
        intensity, rate = zip(*own, strict=True)
        axes.scatter(intensity, rate, s=14, color=f"C{place % 10}", label=shape)
    machine = next((line for line in lines if line["section"] == "machine" and "device" in line), None)
    if machine is not None:
        bandwidth, arithmetic = machine["bytes_per_second"], machine["operations_per_second"]
        ridge = arithmetic / bandwidth
        low = min([ridge / 100, *(x for own in points.values() for x, _ in own)])
        axes.plot([low, ridge, 100 * ridge], [low * bandwidth, arithmetic, arithmetic], color="black", linewidth=1)
        limits = f"copies at {bandwidth / 1e9:,.0f} GB/s, products at {arithmetic / 1e9:,.0f} G operations/s"
        axes.set_title(f"{machine['device']} · {limits}", fontsize=9)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("operations per byte that a pass has to read")
    axes.set_ylabel("operations per second")
    if any(points.values()):
        axes.legend(fontsize=7, frameon=False)
    kind: dict[str, Any] = {"format": path.suffix[1:], "metadata": {"Date": None} if path.suffix == ".svg" else {}}
    save_whole(path, lambda side: drawn.savefig(side, dpi=150, **kind))


def points_of(lines: Sequence[dict[str, Any]], shape: str | None) -> list[tuple[float, float]]:
    """Operations per byte and operations per second of the passes of a shape."""
    own = [line for line in lines if line["section"] == "pass" and line.get("shape") == shape and "ms" in line]
    return [(line["operations"] / line["bytes"], 1e3 * line["operations"] / line["ms"]) for line in own]
