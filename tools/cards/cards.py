"""Model cards: Hugging Face cards with an `mmspec:` block, rendered from the facts beside the weights, never typed.

Sources of a card: what `tools.cards.models` says of the model, the `training.json` beside the
weights that ship, and, where they are beside the card, the JSON of `mmspec bench` and the cells of
`python -m tools.bench one-shape`, `diversity` and `trained`.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from huggingface_hub import ModelCardData

from mmspec.files import save_text
from mmspec.report.views import View
from mmspec.shipped import BENCHES
from tools.cards import diversity, equality, trained
from tools.report.markdown import escaped, in_markdown
from tools.report.whole import WholeResult, load_whole

BENCH, FURTHER = BENCHES
MORE = {
    ".float32.bench.json": "Speed in float32, of other questions",
    ".bfloat16.bench.json": "Speed in bfloat16",
    FURTHER: "Speed of further methods",
}
SMALL = "A model of this size is for demonstrations, tests and benchmarks of speculation; it knows nothing."


@dataclass(frozen=True)
class Shipped:
    """Description of a model that ships, or that `mmspec fetch` brings: what its card says beside measured facts."""

    name: str  # the model's name, without `mmspec/`
    summary: str  # what the model is, in a sentence or two
    target: str  # the target adapter that runs it
    method: str  # default method: `auto`, or the one that was measured to be best
    drafter: str | None  # the draft model that the method needs, or None
    tags: Sequence[str]  # tags of the front matter
    data: Sequence[str] = ()  # the training data with their licences, one line each
    command: str = ""  # the command that trained the model
    # Makes a table of what training measured, from the facts beside the weights; None of a model that others trained
    measured: Callable[[Mapping[str, Any]], View] | None = None
    size: str = SMALL  # what a model of its size is for
    policy: str | None = None  # the policy used with the method; None for the method's own
    k: int | None = None  # units to draft per round; None for the general default
    options: Mapping[str, Any] = field(default_factory=dict)  # of the method's parts, where others pay than the usual
    key_layout: str = "transformers"  # the library or repository whose parameter names the weights have


def render(
    shipped: Shipped, facts: Mapping[str, Any], bench: WholeResult | None = None, beside: Sequence[str] = ()
) -> str:
    """The card of a described model.

    The facts stand in `training.json`: `parameters`, `recipe`, and what `shipped.measured` reads; a model that others
    trained has none. `beside` are further sections.
    """
    block: dict[str, Any] = {"target": shipped.target, "default_method": shipped.method}
    more = {
        "drafter": shipped.drafter,
        "default_policy": shipped.policy,
        "k": shipped.k,
        "options": {**shipped.options},
    }
    block |= {key: value for key, value in more.items() if value}
    block |= {"key_layout": shipped.key_layout} | ({} if bench is None else {"bench": _bench_of(shipped.name)})
    title = shipped.name if shipped.measured is None else f"mmspec/{shipped.name}"
    return (
        f"{_front(shipped.tags, block, license='apache-2.0')}\n# {title}\n\n{shipped.summary}\n"
        + ("" if shipped.measured is None else _training(shipped, shipped.measured(facts), facts))
        + ("" if bench is None else "\n" + speed_section(bench, _bench_of(shipped.name)))
        + "".join("\n" + further for further in beside)
    )


def _training(shipped: Shipped, measured: View, facts: Mapping[str, Any]) -> str:
    """The parts of a card on how a model was trained, and what came of it."""
    recipe = escaped(", ".join(f"{key} {value}" for key, value in facts["recipe"].items()))
    data = "\n".join(f"- {line}" for line in shipped.data)
    return (
        f"\n{facts['parameters']:,} parameters, half-precision safetensors. {shipped.size}\n\n{section(measured)}\n"
        f"## Training\n\n`{shipped.command}` ({recipe}).\n\n{data}\n"
    )


def render_measured(bench: WholeResult, name: str) -> str:
    """The card of any other model, of which only the benchmark is known."""
    front = _front(("speculative-decoding",), {"kind": bench.kind, "bench": _bench_of(name)})
    return f"{front}\n# {escaped(bench.model)}\n\n{speed_section(bench, _bench_of(name))}"


def speed_section(bench: WholeResult, file: str, title: str = "Speed") -> str:
    """The part of a card that is rendered from a benchmark, between the markers of `tools.cards.numbers`.

    `file` is the name of the JSON beside the card.
    """
    from tools.cards.numbers import block as written

    return f"## {title}\n\n{written(f'{file} tables', bench)}\n"


def section(table: View) -> str:
    """A part of a card: a table under its title."""
    return f"## {escaped(table.title)}\n\n{in_markdown([replace(table, title='')])}\n"


def sections_beside(card: Path) -> list[str]:
    """Sections of the documents beside a card.

    They are: speed in bfloat16; methods that were measured in another run than the others, with their own plain
    decoding and peers; outputs equal to plain decoding's; how varied they are; what trainings of drafters change.
    """
    beside = (card.with_name(card.stem + end) for end in (equality.SUFFIX, diversity.SUFFIX, trained.SUFFIX))
    equal, varied, learnt = beside
    more = {card.with_name(card.stem + end): title for end, title in MORE.items()}
    found = [speed_section(load_whole(file), file.name, title) for file, title in more.items() if file.is_file()]
    found += [section(equality.view(equality.load(equal)))] if equal.is_file() else []
    found += [section(diversity.view(diversity.load(varied)))] if varied.is_file() else []
    if learnt.is_file():
        found.append(f"## Trained drafters\n\n{in_markdown(trained.views(trained.load(learnt)))}\n")
    return found


def write(shipped: Shipped, assets: Path, cards: Path) -> Path:
    """Render the card of `assets/<name>` into `cards/<name>.md`, with `cards/<name>.bench.json` if that exists."""
    path = cards / f"{shipped.name}.md"
    save_text(path, from_facts(shipped, assets, cards))
    return path


def from_facts(shipped: Shipped, assets: Path, cards: Path) -> str:
    """The text that `write` writes."""
    bench = cards / _bench_of(shipped.name)
    beside = sections_beside(cards / f"{shipped.name}.md")
    return render(shipped, facts_of(shipped, assets), load_whole(bench) if bench.is_file() else None, beside)


def facts_of(shipped: Shipped, assets: Path) -> dict[str, Any]:
    """What training measured; nothing of a model that others trained."""
    if shipped.measured is None:
        return {}
    return json.loads((assets / shipped.name / "training.json").read_text())


def _bench_of(name: str) -> str:
    return f"{name}{BENCH}"


def _front(tags: Sequence[str], block: Mapping[str, Any], **more: Any) -> str:
    data = ModelCardData(library_name="mmspec", tags=list(tags), mmspec=dict(block), **more)
    return f"---\n{data.to_yaml()}\n---\n"
