"""Trainings of drafters for the shipped text model, and what is counted with what they made.

Rows of a table begin with the same drafter, read the same texts and take as many steps; what differs is what the row is
named for. A length is emitted units per pass on held-out prompts; an α the share of sampled drafts of one unit that an
exact rule takes on held-out text.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch

from mmspec.api.build import decoder_for
from mmspec.bench.methods import decoder_arguments
from mmspec.bench.timing import describe, versions
from mmspec.core.warp import Warp
from mmspec.hosts.loading import load_model, load_tokenizer
from mmspec.kits.text.bench.settings import DRAFTER, texts
from mmspec_text.training.recipe import KINDS_OWN, DrafterKind, DrafterRecipe
from mmspec_text.training.run import train_drafter
from tools.cards.trained import TrainedRow
from tools.train.text import corpus as corpora
from tools.train.text.heads import learnt_data

TARGET = "mmspec/text-14m"
GIVEN, NEW, SEEDS = 64, 64, 2
"""Tokens of a prompt and of its output, and the seeds under which it is sampled."""
WRITTEN = 128
"""Prompts that the target continues, where it writes."""
LENIENT = (1.0, 0.7, 0.4, 0.1)
"""Values of ε."""


@dataclass(frozen=True)
class Lab:
    """Where trainings are, and how long they take."""

    prose: list[Path]
    work: Path
    steps: int
    say: Callable[[str], None] = print

    @cached_property
    def target(self) -> Any:
        return load_model(TARGET).requires_grad_(False)

    @cached_property
    def tokenizer(self) -> Any:
        return load_tokenizer(TARGET)

    @cached_property
    def corpus(self) -> corpora.Corpus:
        return corpora.load(self.prose)

    def trained(self, name: str, kind: DrafterKind, numbers: Mapping[str, Any]) -> tuple[Path, str]:
        """The folder of a trained drafter, and the options of the command that trains it; it resumes.

        `numbers` are a recipe's; `writes` among them says whether the target continues texts, too.
        """
        numbers = dict(numbers)
        writes = numbers.pop("writes", False)
        recipe = DrafterRecipe(**{**KINDS_OWN.get(kind, {}), "steps": self.steps, **numbers})
        data = learnt_data(self.tokenizer, self.corpus, recipe)
        prompts = data.prompts[: WRITTEN if writes else 0]
        folder, work = self.work / name, self.work / f"{name}-work"
        self.say(f"— {name}")
        how: dict[str, Any] = {"recipe": recipe, "folder": folder, "work": work, "name": TARGET, "say": self.say}
        train_drafter(kind, self.target, self.tokenizer, type(data)(data.sources, data.held, prompts), **how)
        usual = {field.name: field.default for field in fields(DrafterRecipe)}
        given = {key: value for key, value in {"steps": self.steps, **numbers}.items() if value != usual[key]}
        own = {"self_generated": WRITTEN * 512} if writes else {}
        options = {"kind": kind, **own, **given}
        return folder, " ".join(f"--{key.replace('_', '-')} {_short(value)}" for key, value in options.items())

    def row(self, table: str, name: str, command: str, figures: Mapping[str, float]) -> TrainedRow:
        return TrainedRow(table, name, command, dict(figures), describe("cpu"), versions())

    @torch.no_grad()
    def decoded(self, target: Any, temperature: float, **how: Any) -> tuple[float, float]:
        """The acceptance length of a method on held-out prompts, and the bias of a lossy rule, else 0."""
        decoder = decoder_for(target, **decoder_arguments(how))
        emitted, passes, biases = 0, 0, []
        for pieces in texts(self.tokenizer).values():
            for ids in pieces:
                for seed in range(SEEDS if temperature else 1):
                    warp = Warp.sampling(temperature=temperature)
                    report = decoder.generate(ids[:, :GIVEN], NEW, seed=seed, warp=warp).report
                    emitted, passes = emitted + report.emitted - report.rows, passes + report.row_rounds
                    biases.append(0.0 if report.bias is None else report.bias.tv)
        return emitted / passes, sum(biases) / len(biases)

    def lengths(self, target: Any, **how: Any) -> dict[str, float]:
        """Of greedy calls, and of sampled ones under the exact rule that draws from the draft's distribution."""
        greedy, sampled = self.decoded(target, 0, **how)[0], self.decoded(target, 1, rule="rejection", **how)[0]
        return {"length, greedy": round(greedy, 3), "length, T = 1": round(sampled, 3)}


def _short(value: Any) -> str:
    """A value as a command has it; a drafter of this run by its folder's name."""
    return value if not isinstance(value, str) or value.startswith("mmspec/") else Path(value).name


def alphas(folder: Path) -> dict[str, float]:
    """α on held-out text, by its kind, as a training counted it."""
    held = json.loads((folder / "training.json").read_text())["held_out"]
    return {f"α, {kind}": found["accepted"] for kind, found in held.items()}


def losses(lab: Lab) -> Iterator[TrainedRow]:
    """The shipped draft model, trained further: by each loss, on the text, on its own ends and on the target's text."""
    row, common = partial(lab.row, "losses"), {"learning_rate": 3e-4, "draft_model": DRAFTER, "hard": 0.0}
    how: dict[str, Any] = {"method": "draft-model", "k": 4}

    def counted(name: str, folder: Path, command: str) -> TrainedRow:
        return row(name, command, {**alphas(folder), **lab.lengths(lab.target, drafter=str(folder), **how)})

    yield row("as shipped", "", lab.lengths(lab.target, drafter=DRAFTER, **how))
    plain, _ = lab.trained("plain-distillation", "model", common)
    on_policy, theirs = (
        {"drafter_share": 0.5, "temperature": 1.0},
        {"writes": True, "own_share": 0.9, "temperature": 1.0},
    )
    ways: dict[str, dict[str, Any]] = {
        "plain distillation": {},
        "reverse KL": {"loss": "reverse-kl"},
        "JSD": {"loss": "jsd"},
        "JSD, β = 0.1": {"loss": "jsd", "beta": 0.1},
        "TV": {"loss": "tv"},
        "TV++": {"loss": "tv++"},
        "AdaSPEC": {"keep_tokens": 0.4, "reference": str(plain)},
        "KL, on-policy": on_policy,
        "TV, on-policy": {"loss": "tv", **on_policy},
        "TV++, on-policy": {"loss": "tv++", **on_policy},
        "KL, the target's text": theirs,
        "TV++, the target's text": {"loss": "tv++", **theirs},
    }
    for name, numbers in ways.items():
        yield counted(name, *lab.trained(slug(name), "model", {**common, **numbers}))


def stages(lab: Lab) -> Iterator[TrainedRow]:
    """Three stages of one drafter: text alone, the target's text, a loss against the target; two losses of the last."""
    row, how = partial(lab.row, "three stages"), {"method": "draft-model", "k": 4}
    first, command = lab.trained("first", "model", {"loss": "hard", "steps": 3 * lab.steps})
    own = {"draft_model": str(first), "writes": True, "own_share": 0.9, "temperature": 1.0}
    found = [("text alone", first, command)]
    for loss in ("kl", "tv", "tv++"):
        name = f"then {loss}, on the target's text"
        numbers = {"loss": loss, "hard": 0.0, "learning_rate": 3e-4, **own}
        found.append((name, *lab.trained(slug(name), "model", numbers)))
    for name, folder, command in found:
        yield row(name, command, {**alphas(folder), **lab.lengths(lab.target, drafter=str(folder), **how)})


def lenience(lab: Lab) -> Iterator[TrainedRow]:
    """The shipped draft model under DistillSpec's lossy rule."""
    for epsilon in LENIENT:
        how = {"method": "draft-model", "drafter": DRAFTER, "k": 4, "rule": "lenient", "epsilon": epsilon}
        length, bias = lab.decoded(lab.target, 1, **how)
        figures = {"length, T = 1": round(length, 3), "bias": round(bias, 4)}
        yield lab.row("lenience", f"ε = {epsilon:g}", "", figures)


def slug(name: str) -> str:
    """A name as that of a folder."""
    return "".join(letter if letter.isalnum() else "-" for letter in name.lower())


TABLES: Mapping[str, Callable[[Lab], Iterator[TrainedRow]]] = {
    "losses": losses,
    "three stages": stages,
    "lenience": lenience,
}
"""The tables, by name."""
