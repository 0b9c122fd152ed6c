"""Trainings of drafters for the shipped text model, and what is counted with what they made.

Rows of a table begin with the same drafter, read the same texts and take as many steps; what differs is what the row is
named for. A length is emitted units per pass on held-out prompts; an α the share of sampled drafts of one unit that an
exact rule takes on held-out text.
"""

import json
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import mmspec
from mmspec.api.build import decoder_for
from mmspec.bench.methods import decoder_arguments
from mmspec.bench.timing import describe, versions
from mmspec.core.decoder import Decoder
from mmspec.core.warp import Warp
from mmspec.hosts.draft_models import own_target
from mmspec.hosts.loading import load_model, load_tokenizer
from mmspec.kits.text.bench.settings import DRAFTER, texts
from mmspec.shipped import asset
from mmspec_text.training.data import Data
from mmspec_text.training.draft_model import measured, write_model
from mmspec_text.training.exits import begun_sorted, measured_exits
from mmspec_text.training.recipe import KINDS_OWN, DrafterKind, DrafterRecipe
from mmspec_text.training.run import train_drafter
from mmspec_text.training.teacher import Teacher
from mmspec_text.training.texts import Batch, Stream
from mmspec_video.recorded import recorded
from mmspec_zoo.infill.training import InfillRecipe, train_and_write
from mmspec_zoo.overlap.overlapped import DraftsAhead
from mmspec_zoo.overlap.process import Process
from tools.bench.trained import blanks, pictures
from tools.bench.trained.cut import cut_short
from tools.cards.trained import TrainedRow
from tools.train.text import corpus as corpora
from tools.train.text import judge
from tools.train.text.heads import learnt_data

TARGET = "mmspec/text-14m"
GIVEN, NEW, PROMPTS = 64, 64, 5
"""Tokens of a prompt and of its output, and the prompts of each kind."""
HELD = 16
"""Held-out windows of each kind in which α is counted."""
SMALL: Mapping[str, Any] = {"batch": 4, "context": 256}
"""Numbers of all recipes: a row is trained in minutes of one core."""
WRITTEN = 32
"""Prompts that the target continues, where it writes."""
KEPT = (2048, 1024, 512)
"""Rows of a trimmed output layer."""
TURNS = 2
"""How often all prompts are decoded where it is timed."""
EXAMPLE, ROUNDS = 20_000, 3
"""Units of a topic's example, and how often the prompts of a topic are continued before it changes."""
BLOCKS: Mapping[str, Any] = {"anchors": 16}
"""Blocks of a sequence, of kinds that learn through the whole target."""
MASKED: Mapping[str, Any] = {"learning_rate": 1e-3, "anchors": 32}
"""A recipe by which a draft model that writes texts learns to fill in masks."""
BESIDE: Mapping[str, Mapping[str, Any]] = {"pearl": {}, "saguaro": {"k": 4}, "mirror-sd": {"k": 4, "branches": 2}}
"""Methods that draft beside the target; pearl says its own length."""
SIDES = ("process", "serial")
CLIPS, GIVEN_FRAMES, FRAMES = 4, 4, 16
"""Recorded clips of a world, first frames that are given, and frames that are made."""
LONGER: Mapping[str, Any] = {"exit_scale": 4.0, "loss": "kl", "hard": 0.0}
"""A recipe whose last exit stays what it was, so that what is learnt is early exits."""
LENIENT = (1.0, 0.7, 0.4, 0.1)
"""Values of ε."""
CUT, REAL, ASKED = 1024, "smollm2", 3
"""Ids of the draft model with a vocabulary of its own, a second target, in bfloat16, and prompts of both."""
JUDGED = (0.95, 0.8, 0.5, 0.2)
"""Values of δ."""


@dataclass(frozen=True)
class Lab:
    """Where trainings are, and how long they take."""

    prose: list[Path]
    work: Path
    steps: int
    say: Callable[[str], None] = print
    pictures: Path | None = None

    @cached_property
    def target(self) -> Any:
        return load_model(TARGET).requires_grad_(False)

    @cached_property
    def tokenizer(self) -> Any:
        return load_tokenizer(TARGET)

    @cached_property
    def corpus(self) -> corpora.Corpus:
        return corpora.load(self.prose)

    @cached_property
    def data(self) -> Data:
        """The texts that the target learnt, with fewer held-out sequences."""
        data = learnt_data(self.tokenizer, self.corpus, DrafterRecipe(**SMALL))
        held = {kind: Batch(batch.ids[:HELD], batch.counted[:HELD]) for kind, batch in data.held.items()}
        return replace(data, held=held)

    def trained(self, name: str, kind: DrafterKind, numbers: Mapping[str, Any], of: str = TARGET) -> tuple[Path, str]:
        """The folder of a drafter that was trained for a model, and the options of the command; it resumes.

        `numbers` are a recipe's; `writes` among them says whether the target continues texts, too.
        """
        numbers = {"steps": self.steps, **SMALL, **numbers}
        writes = numbers.pop("writes", False)
        recipe = DrafterRecipe(**{**KINDS_OWN.get(kind, {}), **numbers})
        data = replace(self.data, prompts=self.data.prompts[: WRITTEN if writes else 0])
        folder, work = self.work / name, self.work / f"{name}-work"
        self.say(f"— {name}")
        how: dict[str, Any] = {"recipe": recipe, "folder": folder, "work": work, "name": of, "say": self.say}
        model = self.target if of == TARGET else load_model(of).requires_grad_(False)
        train_drafter(kind, model, self.tokenizer, data, **how)
        usual = {field.name: field.default for field in fields(DrafterRecipe)}
        given = {key: value for key, value in numbers.items() if value != usual[key]}
        own = {"self_generated": WRITTEN * 512} if writes else {}
        options = {"kind": kind, **own, **given}
        return folder, " ".join(f"--{key.replace('_', '-')} {_short(value)}" for key, value in options.items())

    def row(self, table: str, name: str, command: str, figures: Mapping[str, float]) -> TrainedRow:
        return TrainedRow(table, name, command, dict(figures), describe("cpu"), versions())

    @torch.no_grad()
    def decoded(
        self, target: Any, temperature: float, given: Sequence[Tensor] | None = None, **how: Any
    ) -> tuple[float, float]:
        """The acceptance length of a method on held-out prompts, and the bias of a lossy rule, else 0."""
        decoder = decoder_for(target, **decoder_arguments(how))
        emitted, passes, biases = 0, 0, []
        for ids in given or prompts(self.tokenizer):
            report = decoder.generate(ids, NEW, seed=0, warp=Warp.sampling(temperature)).report
            emitted, passes = emitted + report.emitted - report.rows, passes + report.row_rounds
            biases.append(0.0 if report.bias is None else report.bias.tv)
        return emitted / passes, sum(biases) / len(biases)

    def greedy(self, target: Any, **how: Any) -> float:
        """The acceptance length of greedy calls."""
        return round(self.decoded(target, 0, **how)[0], 3)


def prompts(tokenizer: Any) -> list[Tensor]:
    """Beginnings of held-out texts, `[1, GIVEN]` each."""
    return [ids[:, :GIVEN] for pieces in texts(tokenizer).values() for ids in pieces[:PROMPTS]]


def _short(value: Any) -> str:
    """A value as a command has it; a drafter of this run by its folder's name."""
    return value if not isinstance(value, str) or value.startswith("mmspec/") else Path(value).name


def alphas(held: Mapping[str, Any]) -> dict[str, float]:
    """α on held-out text, by its kind and, of a model with several, by its exit."""
    found: dict[str, float] = {}
    for kind, counted in held.items():
        each = counted["accepted"]
        names = [""] if isinstance(each, float) else [f" of exit {number}" for number in range(1, len(each) + 1)]
        found |= {f"α{name}, {kind}": one for name, one in zip(names, [each] if names == [""] else each, strict=True)}
    return found


def alphas_in(folder: Path) -> dict[str, float]:
    """The same, as a training counted it."""
    return alphas(json.loads((folder / "training.json").read_text())["held_out"])


def losses(lab: Lab) -> Iterator[TrainedRow]:
    """The shipped draft model, trained further: by each loss, on the text, on its own ends and on the target's text."""
    row, common = partial(lab.row, "losses"), {"learning_rate": 3e-4, "draft_model": DRAFTER, "hard": 0.0}
    small, teacher = load_model(DRAFTER), Teacher(lab.target)
    shipped = {kind: measured(small, teacher, batch) for kind, batch in lab.data.held.items()}
    yield row("as shipped", "", alphas(shipped))
    plain, command = lab.trained("plain-distillation", "model", common)
    yield row("plain distillation", command, alphas_in(plain))
    ways: dict[str, dict[str, Any]] = {
        "reverse KL": {"loss": "reverse-kl"},
        "JSD": {"loss": "jsd"},
        "JSD, β = 0.1": {"loss": "jsd", "beta": 0.1},
        "TV": {"loss": "tv"},
        "TV++": {"loss": "tv++"},
        "AdaSPEC": {"keep_tokens": 0.4, "reference": str(plain)},
        "KL, on-policy": {"drafter_share": 0.5, "temperature": 1.0},
        "TV++, on-policy": {"loss": "tv++", "drafter_share": 0.5, "temperature": 1.0},
        "KL, the target's text": {"writes": True, "own_share": 0.9, "temperature": 1.0},
    }
    for name, numbers in ways.items():
        folder, command = lab.trained(slug(name), "model", {**common, **numbers})
        yield row(name, command, alphas_in(folder))


def stages(lab: Lab) -> Iterator[TrainedRow]:
    """Three stages of one drafter: text alone, the target's text, a loss against the target; two losses of the last."""
    first, command = lab.trained("first", "model", {"loss": "hard", "steps": 3 * lab.steps})
    own = {"draft_model": str(first), "writes": True, "own_share": 0.9, "temperature": 1.0}
    found = [("text alone", first, command)]
    for loss in ("kl", "tv++"):
        name = f"then {loss}, on the target's text"
        numbers = {"loss": loss, "hard": 0.0, "learning_rate": 1e-3, **own}
        found.append((name, *lab.trained(slug(name), "model", numbers)))
    for name, folder, command in found:
        yield lab.row("three stages", name, command, alphas_in(folder))


def lenience(lab: Lab) -> Iterator[TrainedRow]:
    """The shipped draft model under DistillSpec's lossy rule."""
    for epsilon in LENIENT:
        how: dict[str, Any] = {"method": "draft-model", "drafter": DRAFTER, "k": 4}
        how |= {"rule": "lenient", "epsilon": epsilon}
        length, bias = lab.decoded(lab.target, 1, **how)
        figures = {"length, T = 1": round(length, 3), "bias": round(bias, 4)}
        yield lab.row("lenience", f"ε = {epsilon:g}", "", figures)


def exits(lab: Lab) -> Iterator[TrainedRow]:
    """The shipped model and one that learnt to be left early, each the target of the methods that leave it."""
    numbers = {"learning_rate": 1e-3, "rotation": 4}
    made: dict[str, tuple[str, dict[str, Any]]] = {
        "trained": ("layer-skip", {"exit_scale": 1.0}),
        "on its own distribution, six times as long": ("layer-skip-kl", {**LONGER, "steps": 6 * lab.steps}),
    }
    ways: dict[str, tuple[Path | None, str]] = {"as shipped": (None, "")}
    ways |= {name: lab.trained(folder, "layer-skip", numbers | own) for name, (folder, own) in made.items()}
    for name, (folder, command) in ways.items():
        target = lab.target if folder is None else load_model(str(folder))
        figures = {
            "layer-skip, exit 2: length": lab.greedy(target, method="layer-skip", k=4, exit=2),
            "layer-skip, exit 4: length": lab.greedy(target, method="layer-skip", k=4, exit=4),
            "del: length": lab.greedy(target, method="del", k=4),
        }
        held = shipped_exits(lab) if folder is None else json.loads((folder / "training.json").read_text())["held_out"]
        figures |= {f"nats, {kind}": counted["nats_per_token"][-1] for kind, counted in held.items()}
        figures |= {key: value for key, value in alphas(held).items() if key.startswith(("α of exit 2", "α of exit 4"))}
        yield lab.row("early exit", name, command, figures)


def shipped_exits(lab: Lab) -> dict[str, Any]:
    """The figures of the exits of the shipped model."""
    info = own_target(lab.target).model_info
    layers = tuple(range(1, len(info.language.layers) + 1))
    return {kind: measured_exits(info, layers, batch, None) for kind, batch in lab.data.held.items()}


def nested(lab: Lab) -> Iterator[TrainedRow]:
    """The first half of the shipped model as a draft model with three exits, for two targets of its tokenizer."""
    numbers, first = {"learning_rate": 1e-3}, lab.work / "first-layers"
    if not first.is_dir():
        write_model(begun_sorted(lab.target, DrafterRecipe(layers=4)), lab.tokenizer, first)
    last = lab.trained("last-exit", "model", {"loss": "hard", "draft_model": str(first), **numbers})
    made = {
        "the first 4 layers": (first, ""),
        "trained at the last exit": last,
        "sorted fine-tuning": lab.trained("sorted", "sorted", numbers),
    }
    targets = {"text-14m": lab.target, "ssm-5m": load_model("mmspec/ssm-5m")}
    for name, (folder, command) in made.items():
        how: dict[str, Any] = {"method": "s2d", "drafter": str(folder), "k": 4, "exits": (2, 3, 4)}
        figures = {f"length, {target}": lab.greedy(live, **how) for target, live in targets.items()}
        figures["length, text-14m, exit 2 alone"] = lab.greedy(lab.target, **how, sure=0.0, stop=0.0)
        yield lab.row("sorted", name, command, figures)


def trimmed(lab: Lab) -> Iterator[TrainedRow]:
    """The shipped draft model with fewer rows of its output layer: all ways decode a prompt before the next one."""
    texts_file, small = lab.work / "corpus.txt", load_model(DRAFTER)
    lab.work.mkdir(parents=True, exist_ok=True)
    texts_file.write_text("\n".join([*lab.corpus.code[:400], *lab.corpus.prose]))
    rows, width = small.get_output_embeddings().weight.shape
    inner = sum(p.numel() for p in small.parameters()) - rows * width  # its embedding is its output layer
    common = {"drafter": DRAFTER, "k": 4}
    options = {rows: {"method": "draft-model", **common}}
    options |= {keep: {"method": "vocab-trim", **common, "keep": keep, "corpus": str(texts_file)} for keep in KEPT}
    ways = {keep: decoder_for(lab.target, **decoder_arguments(how)) for keep, how in options.items()}
    passes, emitted, seconds = (dict.fromkeys(ways, 0.0) for _ in range(3))
    for turn in range(TURNS):
        for ids in prompts(lab.tokenizer):
            for keep, decoder in ways.items():
                began = time.process_time()
                report = decoder.generate(ids, NEW, seed=0, warp=Warp.sampling(0)).report
                seconds[keep] += (time.process_time() - began) if turn else 0  # the first turn lays weights out
                emitted[keep], passes[keep] = emitted[keep] + report.emitted - 1, passes[keep] + report.row_rounds
    outputs = (TURNS - 1) * len(prompts(lab.tokenizer)) * NEW
    for keep in ways:
        figures = {
            "rows": keep,
            "MB that a draft's pass reads": round(4 * (inner + keep * width) / 1e6, 2),
            "length, greedy": round(emitted[keep] / passes[keep], 3),
            "CPU ms a token": round(1e3 * seconds[keep] / outputs, 2),
        }
        yield lab.row("trimmed", "draft-model" if keep == rows else f"vocab-trim, keep {keep}", "", figures)


def shift(lab: Lab) -> Iterator[TrainedRow]:
    """A drafter that learns between calls, while the topic of the prompts is code, then prose, then code again."""
    given, half = prompts(lab.tokenizer), len(prompts(lab.tokenizer)) // 2
    code, prose = (source.units[:EXAMPLE] for source in lab.data.sources if isinstance(source, Stream))
    route = mmspec.Topics({"code": [code], "prose": [prose]})
    one = mmspec.Learning(rate=3e-4, steps=2)
    ways: dict[str, Any] = {
        "as shipped": None,
        "one drafter that learns": one,
        "a drafter for each topic": replace(one, route=route),
    }
    for name, learning in ways.items():
        figures: dict[str, float] = {}
        with mmspec.enable(
            lab.target, "draft-model", drafter=load_model(DRAFTER), k=4, learn=learning or False
        ) as spec:
            for phase, pieces in (("code", given[:half]), ("prose", given[half:]), ("code again", given[:half])):
                figures |= served(phase, lab.target, spec, pieces)
        yield lab.row("shift of topic", name, "", figures)


def served(phase: str, model: Any, spec: Any, pieces: Sequence[Tensor]) -> dict[str, float]:
    """Lengths of greedy calls of an enabled model, the first time and the last one of several."""
    lengths = []
    for _ in range(ROUNDS):
        emitted, passes = 0, 0
        for ids in pieces:
            model.generate(ids, max_new_tokens=NEW, do_sample=False)
            emitted += spec.report.emitted - spec.report.rows
            passes += spec.report.row_rounds
        lengths.append(round(emitted / passes, 3))
    return {f"{phase}: first": lengths[0], f"{phase}: last": lengths[-1]}


def vocabularies(lab: Lab) -> Iterator[TrainedRow]:
    """One draft model of a small vocabulary for two targets of larger ones, one behind the other: by the tokens that
    both have, with n-grams, and learning while it serves.
    """
    start = lab.work / "cut"
    if not start.is_dir():
        cut_short(load_model(DRAFTER), load_tokenizer(DRAFTER), CUT, start)
    learning = mmspec.Learning(rate=3e-4, steps=2, loss="reverse-kl")
    ways: dict[str, tuple[dict[str, Any], Any]] = {
        "tokens of both": ({"method": "draft-model"}, False),
        "with n-grams": ({"method": "omnidraft"}, False),
        "with n-grams, learning": ({"method": "omnidraft"}, learning),
        "with n-grams, learning, γ = 0.6": ({"method": "omnidraft", "stop": 0.6}, learning),
    }
    for name, (method, learn) in ways.items():
        small, figures = load_model(str(start)), dict[str, float]()
        for target in (TARGET, REAL):
            live = lab.target if target == TARGET else load_model(target, "cpu", torch.bfloat16)
            code = prompts(load_tokenizer(target))[:ASKED]
            with mmspec.enable(live, **method, drafter=small, k=4, learn=learn) as spec:
                figures |= served(target, live, spec, code)
                assert spec.totals is not None
                figures[f"{target}: kept drafts"] = round(spec.totals.accepted / spec.totals.drafted, 3)
            if target == TARGET:
                how = {**method, "drafter": small, "k": 4, "rule": "rejection"}
                figures[f"{target}: T = 1, rejection"] = round(lab.decoded(live, 1, code, **how)[0], 3)
        yield lab.row("two vocabularies", name, "", figures)


def drafted_drafts(lab: Lab) -> Iterator[TrainedRow]:
    """The shipped draft model, alone and with prompt tokens of its own."""
    folder, command = lab.trained("ppd-1m", "ppd", BLOCKS, of=DRAFTER)
    ways: dict[str, dict[str, Any]] = {
        "draft-model": {"method": "draft-model"},
        "ppd-model": {"method": "ppd-model", "prompts": str(folder)},
    }
    for name, how in ways.items():
        figures: dict[str, float] = {}
        for k in (4, 8):
            small, passes = load_model(DRAFTER), list[int]()
            small.register_forward_pre_hook(lambda *_, passes=passes: passes.append(1))
            figures[f"{k} drafts: length"] = length = lab.greedy(lab.target, drafter=small, k=k, **how)
            emitted = len(prompts(lab.tokenizer)) * (NEW - 1)
            figures[f"{k} drafts: passes of the draft model in one of the target"] = round(
                len(passes) / (emitted / length), 3
            )
        yield lab.row("drafted drafts", name, command if how["method"] == "ppd-model" else "", figures)


def heads(lab: Lab) -> Iterator[TrainedRow]:
    """Heads beside those that they are measured against in their papers, of as many numbers: the wider MLP is in the
    options of the one that has fewer.
    """
    four: dict[str, Any] = {"form": "rerank", "width": 4, "nodes": 4}
    ways: dict[str, tuple[DrafterKind, dict[str, Any], str, int, dict[str, Any]]] = {
        "Medusa": ("medusa", {"depth": 3}, "medusa", 3, four),
        "Clover": ("clover", {"intermediate": 3369}, "clover", 3, {"form": "clover"}),
        "EAGLE-1": ("eagle", {"intermediate": 2390}, "eagle", 5, {}),
        "FSPAD": ("fspad", {}, "eagle", 5, {}),
    }
    for name, (kind, numbers, method, k, tree) in ways.items():
        folder, command = lab.trained(slug(name), kind, numbers)
        facts, how = (
            json.loads((folder / "training.json").read_text()),
            {"method": method, "drafter": str(folder), "k": k},
        )
        figures = {f"held out: length, {text}": held["length"] for text, held in facts["held_out"].items()}
        figures["greedy chain: length"] = lab.greedy(lab.target, form="chain", **how)
        if tree:
            figures["greedy, four nodes: length"] = lab.greedy(lab.target, **tree, **how)
        yield lab.row("heads", name, command, {"parameters": facts["parameters"], **figures})


def glancing(lab: Lab) -> Iterator[TrainedRow]:
    """Heads of Falcon, which were shown a share of their errors or none, beside an EAGLE-1 head."""
    ways: dict[str, tuple[DrafterKind, dict[str, Any]]] = {
        "EAGLE-1": ("eagle", {"intermediate": 2390}),
        "Falcon, without glancing": ("falcon", {"glance": 0.0}),
        "Falcon": ("falcon", {}),
    }
    for name, (kind, numbers) in ways.items():
        folder, command = lab.trained(slug(name), kind, numbers)
        facts, how = json.loads((folder / "training.json").read_text()), {"method": kind, "drafter": str(folder)}
        figures = {f"held out: length, {text}": held["length"] for text, held in facts["held_out"].items()}
        figures["greedy chain: length"] = lab.greedy(lab.target, form="chain", k=6, **how)
        figures["greedy, the published tree: length"] = lab.greedy(lab.target, form="published", k=8, **how)
        yield lab.row("glancing", name, command, {"parameters": facts["parameters"], **figures})


def masks(lab: Lab) -> Iterator[TrainedRow]:
    """Masks under a gated LoRA, fewer and more of them, beside prompt tokens and Medusa's heads of as many depths."""
    gated, made = lab.trained("gated-lora", "gated-lora", {"loss": "kl", "rank": 16, "learning_rate": 2e-3, **BLOCKS})
    ways = [(f"gated LoRA, {n} masks", gated, made, {"method": "gated-lora", "masks": n}) for n in (1, 4, 8)]
    ways.append(("gated LoRA, linear decoding", gated, made, {"method": "gated-lora", "form": "linear"}))
    others: tuple[tuple[DrafterKind, Mapping[str, Any]], ...] = (("ppd", BLOCKS), ("medusa", {"own_output": False}))
    for kind, numbers in others:
        folder, made = lab.trained(f"{kind}-8", kind, {"depth": 8, "hard": 0.0, **numbers})
        ways.append((f"{kind}, 8 depths", folder, made, {"method": kind, "form": "chain"}))
    for name, folder, made, how in ways:
        parameters = json.loads((folder / "training.json").read_text())["parameters"]
        length = lab.greedy(lab.target, **how, drafter=str(folder), k=8)
        yield lab.row("masks", name, made, {"parameters": parameters, "greedy: length": length})


def beside(lab: Lab) -> Iterator[TrainedRow]:
    """Methods that draft while the target verifies, beside themselves with `executor=serial` and the draft model
    in turns with the target: with the shipped draft model, and with one of its size that learnt to fill in masks.

    The target and the draft model have one thread each. With a core for each, a token takes at least the larger of both
    CPU times, which no other load on the machine changes; beside them is what it took.
    """
    masks, command = lab.trained("masks", "pard", {"draft_model": DRAFTER, **MASKED})
    plain = decoder_for(lab.target, **decoder_arguments({"method": "plain"}))
    decoders, made = {"plain": plain}, dict.fromkeys(["plain"], "")
    for small, mode, alone in ((DRAFTER, "", "draft-model"), (str(masks), ", masks", "pard")):
        ways: dict[str, dict[str, Any]] = {alone: {"method": alone, "k": 4}}
        for method, how in BESIDE.items():
            ways |= {f"{method}, {executor}": {"method": method, "executor": executor, **how} for executor in SIDES}
        for name, how in ways.items():
            if "pearl" in name and "serial" in name:
                how["k"] = decoders[f"pearl, process{mode}"].k
            decoders[name + mode] = decoder_for(lab.target, **decoder_arguments({**how, "drafter": small}))
            made[name + mode] = command if mode else ""
    clocks: dict[str, Callable[[Decoder], float]] = {
        "CPU ms a token": lambda _: time.process_time(),
        "CPU ms a token, draft model": lambda decoder: child_seconds(decoder.drafter),
        "ms a token": lambda _: time.perf_counter(),
    }
    taken, emitted, passes = {name: dict.fromkeys(clocks, 0.0) for name in decoders}, Counter[str](), Counter[str]()
    for ids in prompts(lab.tokenizer):
        for name, decoder in decoders.items():
            before = {clock: read(decoder) for clock, read in clocks.items()}
            report = decoder.generate(ids, NEW, seed=0, warp=Warp.sampling(0)).report
            for clock, read in clocks.items():
                taken[name][clock] += read(decoder) - before[clock]
            emitted[name], passes[name] = emitted[name] + report.emitted - 1, passes[name] + report.rounds
    for name, decoder in decoders.items():
        figures = {"k": decoder.k, "length": round(emitted[name] / passes[name], 3)}
        figures |= {clock: round(1e3 * seconds / emitted[name], 3) for clock, seconds in taken[name].items()}
        yield lab.row("beside", name, made[name], figures)


def child_seconds(drafter: Any) -> float:
    """CPU seconds of the process of a draft model; 0 if it has none."""
    if not isinstance(drafter, DraftsAhead) or not isinstance(drafter.executor, Process):
        return 0.0
    fields = Path(f"/proc/{drafter.executor.start().pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")


def infilling(lab: Lab) -> Iterator[TrainedRow]:
    """A small XLNet that was trained to fill blanks: texts of which 5 % are known, by each way of drafting."""
    start, folder = lab.work / "xlnet", lab.work / "infill"
    if not start.is_dir():
        blanks.begun(lab.tokenizer, start)
    tokenizer, recipe = load_tokenizer(str(start)), InfillRecipe(lab.steps, 8, blanks.LENGTH, lab.steps, 1e-3)
    units = [tokenizer(text)["input_ids"] for text in [*lab.corpus.code[:400], *lab.corpus.prose]]
    learnt = torch.tensor([unit for text in units for unit in text])
    work = lab.work / "infill-work"
    model = load_model(str(start)).float()
    train_and_write(model, tokenizer, learnt, recipe, folder, work, name="xlnet", say=lab.say)
    model, held = load_model(str(folder)), [*lab.corpus.held_out_code, *lab.corpus.held_out_prose]
    every = torch.tensor([unit for text in held for unit in tokenizer(text)["input_ids"]])
    texts = every[: len(every) // blanks.LENGTH * blanks.LENGTH].view(-1, blanks.LENGTH)
    some = texts[:: max(1, len(texts) // PROMPTS)][:PROMPTS]
    nats = json.loads((folder / "training.json").read_text())["held_out"]["nats a blank"]
    for name, draft in (("plain", None), ("assd", "model"), ("assd, draft=bigram", "bigram")):
        length, accepted = blanks.filled(model, some, draft)
        figures = {"nats a blank": nats, "blanks a pass": length, "kept drafts": accepted}
        yield lab.row("infilling", name, "", figures)


def frames(lab: Lab) -> Iterator[TrainedRow]:
    """The shipped world whose frames are denoised, by itself and by its consistency student, alone and with the frames
    of four actions made together (NFD+); all actions are known.
    """
    pipe, kept = mmspec.Pipeline.from_pretrained("mmspec/four-courts"), recorded([asset("four-courts")])
    pipe.set_progress_bar_config(disable=True)
    ways: dict[str, dict[str, Any]] = {
        "plain": {"method": "plain"},
        "nfd": {"method": "nfd", "k": 3},
        "the student": {"method": "nfd", "k": 0, "student": True},
        "nfd, the student": {"method": "nfd", "k": 3, "student": True},
    }
    for name, how in ways.items():
        model: Any = pipe.use(**how).decoder().target
        passes, errors = list[int](), list[Tensor]()
        counting = model.denoiser.model.register_forward_pre_hook(lambda *_, passes=passes: passes.append(1))
        for clip in range(CLIPS):
            first, actions = kept.frames[clip : clip + 1, :GIVEN_FRAMES], kept.actions[clip : clip + 1]
            past, coming = actions[:, : GIVEN_FRAMES - 1], actions[:, GIVEN_FRAMES - 1 : GIVEN_FRAMES - 1 + FRAMES]
            made = pipe((first + 1) / 2, coming, past_actions=past, seed=clip, output_type="pt")
            there = kept.frames[clip, GIVEN_FRAMES : GIVEN_FRAMES + FRAMES]
            errors.append((made.frames[0] - (there + 1) / 2).square().mean((1, 2, 3)))
        counting.remove()
        decibels = -10 * torch.stack(errors).mean(0).log10()
        figures = {"passes a frame": round(len(passes) / (CLIPS * FRAMES), 3)}
        figures |= {f"PSNR, frame {at}": round(float(decibels[at - 1]), 2) for at in (1, 4, FRAMES)}
        yield lab.row("frames", name, "", figures)


def negatives(lab: Lab) -> Iterator[TrainedRow]:
    """The shipped picture model with adaptive negatives, and without."""
    for name, figures in pictures.negatives():
        yield lab.row("negatives", name, "", figures)


def picture_heads(lab: Lab) -> Iterator[TrainedRow]:
    """The shipped picture model with its head, exactly and under LANTERN's rule."""
    for name, figures in pictures.heads():
        yield lab.row("picture heads", name, "", figures)


def drafted_sets(lab: Lab) -> Iterator[TrainedRow]:
    """A pair of small MARs: plain, drafted, and plain with as many passes as drafts leave."""
    if lab.pictures is None:
        raise ValueError("MARs are trained on pictures: --pictures names a folder with emoji64.npz and captions.txt")
    for name, figures in pictures.drafted_sets(lab.pictures, lab.work, lab.steps, lab.say):
        yield lab.row("drafted sets", name, "", figures)


def judged(lab: Lab) -> Iterator[TrainedRow]:
    """The shipped judge at several thresholds, asked with which statements held-out code goes on; and what the draft
    model answers alone.
    """
    every = list(judge.questions(lab.corpus.held_out_code))
    asked = every[:: max(1, len(every) // judge.HELD)][: judge.HELD]
    ways: dict[str, dict[str, Any]] = {"draft-model, exact": {"method": "draft-model"}}
    for delta in JUDGED:
        ways[f"judge, δ = {delta:g}"] = {"method": "judge", "head": f"mmspec/{judge.NAME}", "threshold": delta}
    kept: list[str | None] = []
    for name, how in {**ways, "text-1m alone": {"method": "plain"}}.items():
        small = {"drafter": DRAFTER, "k": 4} if how["method"] != "plain" else {}
        decoder = decoder_for(lab.target if small else load_model(DRAFTER), **decoder_arguments({**how, **small}))
        answers, emitted, passes, bias = list[str | None](), 0, 0, 0.0
        for text in asked:
            out = decoder.generate(
                lab.tokenizer(text, return_tensors="pt")["input_ids"], judge.NEW, seed=0, warp=Warp.sampling(0)
            )
            answers.append(judge.answer(lab.tokenizer.decode(out.units[0])))
            emitted, passes = emitted + out.report.emitted - 1, passes + out.report.row_rounds
            bias += 0.0 if out.report.bias is None else out.report.bias.tv / len(asked)
        kept = kept or answers
        alike = [one == other for one, other in zip(answers, kept, strict=True) if other is not None]
        figures = {"length, on the questions": round(emitted / passes, 3), "bias": round(bias, 4)} if small else {}
        figures |= {"questions": len(alike), "answers kept": round(sum(alike) / len(alike), 3)}
        yield lab.row("judged", name, "", figures)


def slug(name: str) -> str:
    """A name as that of a folder."""
    return "".join(letter if letter.isalnum() else "-" for letter in name.lower())


TABLES: Mapping[str, Callable[[Lab], Iterator[TrainedRow]]] = {
    "losses": losses,
    "three stages": stages,
    "lenience": lenience,
    "early exit": exits,
    "sorted": nested,
    "trimmed": trimmed,
    "shift of topic": shift,
    "heads": heads,
    "glancing": glancing,
    "infilling": infilling,
    "frames": frames,
    "masks": masks,
    "negatives": negatives,
    "picture heads": picture_heads,
    "drafted sets": drafted_sets,
    "beside": beside,
    "judged": judged,
    "two vocabularies": vocabularies,
    "drafted drafts": drafted_drafts,
}
"""The tables, by name."""
