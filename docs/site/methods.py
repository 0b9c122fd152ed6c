"""A page for every method, made of its manifest, the docstrings of its parts, their options and the benchmarks."""

import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mmspec.registry import MethodSpec, Pairing, installed, pair
from mmspec.registry.options import explain
from mmspec.registry.specs import FactorySpec
from mmspec.report.result import speedup_of
from tools.report.whole import WholeResult, base_in_words, load_whole

CARDS = Path(__file__).resolve().parents[2] / "model_cards"
PROMISES = {
    "invariant": "The output is that of plain decoding with the same seed.",
    "lossless": "The output has the distribution of plain decoding; for a seed, it is another sample.",
    "lossy": "**The output has another distribution than plain decoding's.** Reports carry the measured bias.",
    "synthetic": "For benchmarks alone: the output means nothing.",
}
NOTE = (
    "Shipped models on the machine that their cards name. Speed is the median over interleaved repeats: the time of "
    "plain decoding, or of the fastest other way to decode the same prompts with the same weights, over the method's "
    "own. Splits of the time and memory are in the cards."
)
MATCH = "match"


def pages() -> Iterator[tuple[str, str]]:
    """Path and Markdown of every page, an index first."""
    registry = installed()
    chosen = sorted(registry.components("method"), key=lambda method: method.name)
    results = [(path, load_whole(path)) for path in sorted(CARDS.glob("*.bench.json"))]
    lines = [
        f"| [`{method.name}`]({method.name}.md) | {method.exactness} | {method.summary} | {method.owner} |"
        for method in chosen
    ]
    table = "\n".join(["| method | exactness | what it does | plugin |", "|---|---|---|---|", *lines])
    yield "methods/index.md", f"# Methods\n\nEvery method that mmspec and its plugins bring.\n\n{table}\n"
    for method in chosen:
        yield f"methods/{method.name}.md", _page(method, pair(registry, method), results)


def _page(method: MethodSpec, parts: Pairing, results: list[tuple[Path, WholeResult]]) -> str:
    facts = [
        f"- **Exactness**: {method.exactness}. {PROMISES[method.exactness]}",
        *([f"- **Paper**: <{method.paper}>"] if method.paper else []),
        f"- **Needs of the target**: {', '.join(f'`{word}`' for word in sorted(parts.needs)) or 'nothing'}",
        f"- **Rule**: `{parts.rule.name}`. **Plugin**: `{method.owner}`.",
    ]
    sections = [f"# `{method.name}`", method.summary, "\n".join(facts)]
    described = [spec for spec in (parts.drafter, parts.rule) if spec is not None and spec.name != MATCH]
    for spec in described:
        sections += [f"## The {spec.kind} `{spec.name}`", _described(spec), _options(spec, method)]
    return "\n\n".join([*filter(None, sections), _measured(method.name, results)]) + "\n"


def _described(spec: FactorySpec) -> str:
    """What the file of a component says of it: the docstring of its module, without the name that opens it."""
    return (importlib.import_module(spec.factory.partition(":")[0]).__doc__ or "").strip()


def _options(spec: Any, method: MethodSpec) -> str:
    options = spec.load_options()
    if options is None:
        return ""
    rows = [
        f"| `{line.name}` | `{method.defaults.get(line.name, line.default)}` "
        f"| {_cell(line.allowed)} | {_cell(line.help)} |"
        for line in explain(options)
    ]
    return "\n".join(["| option | default | allowed | what it does |", "|---|---|---|---|", *rows])


def _measured(name: str, results: list[tuple[Path, WholeResult]]) -> str:
    """The rows of a method in the benchmarks, and where it did not pay."""
    found = [
        (f"[{_model(path)}](../cards/{_model(path)}.md)", result, row)
        for path, result in results
        for row in result.rows
        if row.mode == "real" and row.batch == 1 and row.options.get("method", row.method) == name
    ]
    if not found:
        return "## Measured\n\nNo benchmark of ours has a row for it."
    lines = []
    for model, result, row in found:
        way, seconds = base_in_words(result, row.setting)
        speeds = f"{row.speedup:.2f} | {speedup_of(seconds, row.repeats_s):.2f} × {way}"
        lines += [f"| {model} | {row.setting} | {row.method} | {row.acceptance_length:.2f} | {speeds} |"]
    header = [
        "| model | setting | row | acceptance length | speed, × our plain decoding | speed, × the fastest other way |",
        "|---|---|---|---|---|---|",
    ]
    slower = [
        f"{model}: {row.setting} ({row.speedup:.2f} ×)"
        for model, _, row in found
        if row.speedup < 1 and row.method == name
    ]
    advice = "It was never slower than plain decoding there."
    if slower:
        advice = f"**When not to use it**: it was slower than plain decoding on {'; '.join(slower)}."
    return "\n".join(["## Measured", "", *header, *lines, "", advice, "", NOTE])


def _model(path: Path) -> str:
    return path.name.partition(".")[0]


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
