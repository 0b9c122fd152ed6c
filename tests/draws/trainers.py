"""Trained drafters: a run writes its folder whole, loads, resumes to the bit, and loses nobody's files.

Targets are small decoders of any architecture; of their texts only the tokens matter. A run is stopped at a step, or
where it writes its n-th file: by CTRL-C, SIGTERM, an error, a full disk, or a kill, which a forked process dies of.
"""

import errno
import os
import random
import signal
import sys
import tempfile
import typing
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, chdir
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import typer
from safetensors.torch import load_file
from torch import Tensor
from transformers import PreTrainedTokenizerFast

import mmspec
from mmspec.compare.equality import assert_same, stock
from mmspec.files import save_sealed
from mmspec.hosts.loading import load_model
from mmspec.training import loop
from mmspec.training.losses import DraftLoss
from mmspec_text.training.command import train_drafter
from mmspec_text.training.recipe import DEEP, DRAFTERS, ONLY, DrafterRecipe
from mmspec_text.training.run import KINDS
from mmspec_text.training.texts import Texts
from tests.draws.claim import Broken, Case, Claim, Dice
from tests.draws.option_values import drawn_value
from tests.support.picture_pipes import caption_tokenizer
from tests.support.zoo import ARCHITECTURES, RECURRENT, VOCAB

TARGETS = {**ARCHITECTURES, **RECURRENT}
STOPS = ("interrupt", "term", "error", "full disk", "killed")
OUTS = ("missing", "empty", "ours", "stranger", "added", "target", "above", "here", "work", "in work", "data", "file")
WORKS = ("missing", "again", "other", "stranger")
SMALL: dict[str, Sequence[Any]] = {
    "steps": (2, 3, 4), "batch": (1, 2, 3), "batches": (1, 2), "context": (8, 16, 24), "depth": (1, 2, 4),
    "layers": (1, 2), "anchors": (1, 4), "draft_vocab": (8, 40, VOCAB), "intermediate": (8, 32), "seed": (0, 1, 7),
    "noise": (0.0, 0.1, 1.0), "feature_weight": (0.0, 1.0, 10.0),
    "learning_rate": (1e-3, 1e-2), "loss": tuple(typing.get_args(typing.get_type_hints(DraftLoss)["kind"])),
}  # fmt: skip
"""Values of numbers that are large or texts; those of all others come from their declarations."""
NOT_DRAWN = ("head", "draft_model", "reference")
USUAL = {"steps": 3, "batch": 2, "context": 16, "depth": 2}
NUMBERS = [name for name in typing.get_type_hints(DrafterRecipe) if name not in NOT_DRAWN]


class Died(Exception):
    """What stops a run that is stopped by an error."""


@dataclass
class Place:
    """The folders of a case."""

    root: Path

    @property
    def target(self) -> Path:
        return self.root / "models" / "target"

    @property
    def data(self) -> Path:
        return self.root / "texts" / "texts.jsonl"

    def out(self, kind: str) -> Path:
        named = {"target": self.target, "above": self.target.parent, "here": Path(), "data": self.data.parent}
        return {**named, "work": self.work, "in work": self.work / "drafter"}.get(kind, self.root / "out")

    @property
    def work(self) -> Path:
        return self.root / "work"

    def files(self) -> dict[str, bytes]:
        """Everything that is there; hidden files in folders of work are its own."""
        found = {}
        for path in self.root.rglob("*"):
            if path.is_file():
                found[str(path.relative_to(self.root))] = path.read_bytes()
        return found


class Trainers(Claim):
    name = "trainers"
    share = 0.7
    fixed = 12
    needed = frozenset({"target", "kind"})

    def draw(self, dice: Dice) -> Case:
        case: Case = {"target": dice.dealt(list(TARGETS), dice.number), "kind": dice.choice(DRAFTERS)}
        hints = typing.get_type_hints(DrafterRecipe, include_extras=True)
        if dice.random() < 0.2:
            case["own"] = dice.choice([300, 600])
        for name in NUMBERS:
            unused = case["kind"] not in ONLY.get(name, (DRAFTERS, ""))[0]
            unused |= name in ("own_share", "temperature") and "own" not in case
            unused |= name == "beta" and case.get("number.loss") != "jsd"
            if dice.random() < (0.01 if unused else 0.2):
                value = dice.choice(SMALL[name]) if name in SMALL else drawn_value(limited(hints[name]), dice)
                case[f"number.{name}"] = value
        if dice.random() < 0.1:
            case["data"] = dice.choice(["none", "short", "empty", "foreign ids"])
        if dice.random() < 0.1:
            case["dtype"] = "bfloat16"
        if dice.random() < 0.6:
            case["stop"], case["at"] = dice.choice(STOPS), dice.randint(1, 5)
            case |= {"often": True} if dice.random() < 0.5 else {}
        if dice.random() < 0.4:
            case["out"] = dice.choice(OUTS)
        if dice.random() < 0.25:
            case["work"] = dice.choice(WORKS)
        return case

    def run(self, case: Case) -> str:
        with tempfile.TemporaryDirectory() as root, ExitStack() as inside, torch.random.fork_rng(devices=[]):
            place = Place(Path(root))
            (place.root / "here").mkdir()
            inside.enter_context(chdir(place.root / "here"))
            inside.enter_context(patch("typer.echo", str))
            if case.get("often"):
                inside.enter_context(patch.object(DrafterRecipe, "loop", often(DrafterRecipe.loop)))
            prepared(place, case)
            return self._run(place, case)

    def _run(self, place: Place, case: Case) -> str:
        out, before = place.out(case.get("out", "missing")), place.files()
        stopped = False
        try:
            if "stop" in case:
                stopped = stopped_run(place, case, out)
                unharmed(before, place.files(), case, complete=False)
            train(place, case, out)
        except ValueError as error:
            return self._refused(place, case, before, error)
        except OSError as error:
            if case.get("stop") != "full disk":
                raise
            return self._refused(place, case, before, ValueError(str(error)))
        unharmed(before, place.files(), case, complete=True)
        left = [path.name for path in place.root.rglob(".*part*")]
        if left and case.get("stop") != "killed":
            raise Broken(f"it left {left[0]} behind")
        if stopped or case.get("work") == "again":
            whole = place.root / "whole"
            train(place, {**case, "work": "missing"}, whole, place.root / "whole-work")
            same_folders(out, whole)
        drafts(place, case, out)
        return "resumed" if stopped else "trained"

    def _refused(self, place: Place, case: Case, before: dict[str, bytes], error: ValueError) -> str:
        if len(str(error)) < 12 or not str(error).replace("\n", "").isprintable():
            raise Broken(f"it is refused without words: {error!r}")
        after = place.files()
        changed = [name for name, held in before.items() if after.get(name) != held]
        if changed and not case.get("stop"):
            raise Broken(f"it refused the run, and {changed[0]} was changed before")
        out = place.root / "out"
        if case.get("out", "missing") == "missing" and out.exists():
            raise Broken("it refused the run, and wrote --out")
        if os.environ.get("SAY"):
            print("refused:", case["kind"], str(error)[:300], flush=True)
        return "refused"

    def space(self) -> Iterator[str]:
        for kind, values in SPACE.items():
            yield from (f"{kind}:{value}" for value in values)
        yield from (f"number:{name}" for name in NUMBERS)

    def parts(self, case: Case) -> Iterator[str]:
        yield from (f"{key}:{case[key]}" for key in SPACE if key in case)
        yield from (f"number:{key[7:]}" for key in case if key.startswith("number."))

    def program(self, case: Case) -> str:
        return "\n".join([
            "from tests.draws.trainers import CLAIM",
            "# A target of this architecture is saved beside texts; a drafter is trained, stopped, trained on, loaded.",
            f"case = {case!r}",
            "print(CLAIM.run(case))",
        ])  # fmt: skip


SPACE = {"target": TARGETS, "kind": DRAFTERS, "stop": STOPS, "out": OUTS, "work": WORKS}


def limited(hint: Any) -> Any:
    """A number's declaration as `drawn_value` reads it: typer's `min` and `max` are `ge` and `le`."""
    from pydantic import Field

    kind, *extras = typing.get_args(hint)
    option = extras[0]
    inner = typing.get_args(kind)[0] if typing.get_args(kind) else kind
    bounds = {name: value for name, value in (("ge", option.min), ("le", option.max)) if value is not None}
    return typing.Annotated[inner, Field(**bounds)]


def often(of: Callable[..., loop.LoopOptions]) -> Callable[..., loop.LoopOptions]:
    """A recipe's settings with a checkpoint after every step."""
    return lambda recipe, hidden: replace(of(recipe, hidden), save_every=1)


@cache
def target(name: str) -> Any:
    """A decoder with weights as transformers draws them: any text is about as likely as any other."""
    return replace(TARGETS[name], gain=1.0, head=1.0, embedding=1.0, factors={}).model()


def prepared(place: Place, case: Case) -> None:
    """Write the target, the texts, and what stands in the folders before the run."""
    target(case["target"]).save_pretrained(place.target)
    tokens().save_pretrained(place.target)
    place.data.parent.mkdir()
    dice, kind = random.Random(3), case.get("data", "")
    lines = {"short": 1, "empty": 0}.get(kind, 40)
    last = VOCAB + 5 if kind == "foreign ids" else VOCAB
    with place.data.open("w") as file:
        for _ in range(lines):
            file.write(f'{{"ids": {[dice.randrange(2, last) for _ in range(20)]}}}\n')
    (place.root / "notes.md").write_text("hers")
    out = case.get("out", "missing")
    folder = place.out(out)
    if out == "ours":
        save_sealed(folder, lambda side: (side.mkdir(), (side / "old").write_text("1")))
    elif out in ("empty", "stranger", "added"):
        if out == "added":
            save_sealed(folder, lambda side: (side.mkdir(), (side / "old").write_text("1")))
        folder.mkdir(exist_ok=True)
        if out != "empty":
            (folder / "notes.md").write_text("hers")
    elif out == "file":
        folder.write_text("hers")
    elif out == "here":
        Path("notes.md").write_text("hers")
    work = case.get("work", "missing")
    if work in ("again", "other"):
        seed = case.get("number.seed", 0) + (work == "other")
        try:
            train(place, {**case, "number.seed": seed}, place.root / "earlier")
        except ValueError:
            return  # and so is the run itself
    elif work == "stranger":
        place.work.mkdir()
        (place.work / "notes.md").write_text("hers")


@cache
def tokens() -> PreTrainedTokenizerFast:
    """A word for each of a target's ids; the loaders of some models would add special ones that it does not have."""
    words = caption_tokenizer(["<pad>", "<unk>", "<eos>", *(f"w{i}" for i in range(VOCAB - 3))], 512)
    words.eos_token = "<eos>"
    return words


def train(place: Place, case: Case, out: Path, work: Path | None = None) -> None:
    """The command."""
    numbers = {key[7:]: value for key, value in case.items() if key.startswith("number.")}
    usual = {name: value for name, value in USUAL.items() if name != "depth" or case["kind"] in DEEP}
    data = None if case.get("data") == "none" else [place.data]
    how: dict[str, Any] = {"data": data, "self_generated": case.get("own", 0), "dtype": case.get("dtype", "float32")}
    train_drafter(str(place.target), out, kind=case["kind"], work=work or place.work, **how, **{**usual, **numbers})


def stopped_run(place: Place, case: Case, out: Path) -> bool:
    """A run that is stopped; false where it came to its end before, or was refused.

    Raises:
        ValueError: It was refused.
    """
    if case["stop"] == "killed":
        return killed_run(place, case, out)
    signals = {"interrupt": signal.SIGINT, "term": signal.SIGTERM}
    calls, batch_at, replaced = [0], Texts.batch_at, os.replace

    def step(self: Texts, number: int) -> Any:
        calls[0] += 1
        if calls[0] == case["at"]:
            if case["stop"] == "error":
                raise Died
            signal.raise_signal(signals[case["stop"]])
        return batch_at(self, number)

    def full(*paths: Any) -> None:
        calls[0] += 1
        if calls[0] == case["at"]:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        replaced(*paths)

    try:
        if case["stop"] == "full disk":
            with patch("os.replace", full):
                train(place, case, out)
        else:
            with patch.object(Texts, "batch_at", step):
                train(place, case, out)
    except (typer.Exit, Died):
        return True
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        return True
    return False


def killed_run(place: Place, case: Case, out: Path) -> bool:
    """A run in a forked process, which dies where it would put its n-th file or folder into its place."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    calls = [0]

    def dies(of: Callable[..., None]) -> Callable[..., None]:
        def moves(*paths: Any) -> None:
            calls[0] += 1
            if calls[0] == case["at"]:
                os._exit(9)
            of(*paths)

        return moves

    try:
        os.replace, os.rename = dies(os.replace), dies(os.rename)
        train(place, case, out)
    except BaseException:
        os._exit(1)
    finally:
        sys.stdout.flush()
        os._exit(0)


def unharmed(before: dict[str, bytes], after: dict[str, bytes], case: Case, complete: bool) -> None:
    """Nothing that was there is gone or changed, but for our own drafter, and the folder of work."""
    ours = case.get("out") == "ours"
    for name, held in before.items():
        own = name.startswith("work/") or (ours and name.startswith("out/"))
        if not own and after.get(name) != held:
            raise Broken(f"{name} is {'changed' if name in after else 'gone'}")
    if case.get("work") == "stranger" and "work/notes.md" not in after:
        raise Broken("work/notes.md is gone")
    old = ours and "out/old" in before and "out/old" not in after
    if not complete and old and "out/training.json" not in after:
        raise Broken("the old drafter is gone, and the new one is not there")


def weights_in(folder: Path) -> dict[str, Tensor]:
    """The weights of a drafter's folder."""
    (file,) = (path for path in folder.iterdir() if path.suffix in (".safetensors", ".pt", ".bin"))
    whole = file.suffix == ".safetensors"
    found: dict[str, Tensor] = load_file(file) if whole else torch.load(file, weights_only=True)
    return found


def same_folders(one: Path, other: Path) -> None:
    """Two runs of one recipe wrote the same, to the bit."""
    mine, right = weights_in(one), weights_in(other)
    apart = [
        key for key in {**mine, **right} if key not in mine or key not in right or not equal(mine[key], right[key])
    ]
    if apart:
        raise Broken(f"{len(apart)} of {len(right)} tensors are others than those of a whole run: {apart[0]}")
    for name in ("training.json", "config.json", "README.md"):
        texts = [(folder / name).read_text() if (folder / name).exists() else "" for folder in (one, other)]
        if texts[0] != texts[1]:
            raise Broken(f"{name} is another than a whole run's")


def equal(one: Tensor, other: Tensor) -> bool:
    return one.dtype == other.dtype and torch.equal(one, other)


def drafts(place: Place, case: Case, out: Path) -> None:
    """The drafter loads, and the target's texts are as without it."""
    skips, sorted_ = case["kind"] == "layer-skip", case["kind"] == "sorted"
    model = load_model(str(out)) if skips else target(case["target"])
    model.generation_config.eos_token_id = None
    ids = torch.randint(2, VOCAB, (1, 9), generator=torch.Generator().manual_seed(4))
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    call: dict[str, Any] = {"max_new_tokens": 10, "do_sample": False}
    expected = stock(model, inputs, 0, **call)
    how: dict[str, Any] = {} if skips else {"drafter": str(out)}
    how |= {"stop": 0.0} if sorted_ else {}
    with mmspec.enable(model, KINDS[case["kind"]][0], k=2, **how) as enabled:
        assert_same(model.generate(**inputs, **call), expected)
    if not enabled.report.drafted:
        raise Broken("the drafter drafted nothing")


CLAIM = Trainers()
