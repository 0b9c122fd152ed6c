"""Any folder is taken, and then it does what it did where it was written, or a message says what it is.

A case is a folder, as somebody publishes it or as a stranger names it by mistake, and a door: what loads models,
pipelines and drafters, and commands. Nothing is written, and no code of a pickle is run.
"""

import contextlib
import copy
import io
import random
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

import mmspec
from mmspec.cli import boundary
from mmspec.cli.app import build
from mmspec.hosts.loading import load_model
from tests.draws.claim import Broken, Case, Claim
from tests.draws.folder_kinds import BESIDE, MARK, ORIGINALS, STRANGERS, reference, target
from tests.draws.folder_official import WRITERS, converted, usual, write_official
from tests.draws.head_files import DTYPES, FORMS
from tests.fuzz.conftest import refuse_dangers

METHODS = (
    *(
        "arctic-lstm",
        "clover",
        "clover-2",
        "dflash",
        "draft-model",
        "eagle",
        "falcon",
        "gemma4-assistant",
        "hydra",
        "medusa",
    ),
    *("mlp-speculator", "mtp", "p-eagle", "pard", "ppd", "gated-lora"),
)
"""Methods that read a folder."""
LAYOUTS = ("anole", "emu3", "emu3.5", "janus", "liquid", "lumina", "lumina2", "mar", "oasis", "simplear")
COMMANDS = {
    "command text": ("generate", "text", "x", "--max-new-tokens", "2", "--model"),
    "command image": ("generate", "image", "x", "--out", "OUT.png", "--model"),
    "command plan": ("plan",),
    **{f"command convert {layout}": ("convert", layout, "--out", "OUT") for layout in LAYOUTS},
    "command convert lumina": ("convert", "lumina", "--opt", "size=512", "--out", "OUT"),
}
OFFICIAL, CONVERT = {f"official:{layout}": layout for layout in WRITERS}, "convert"
"""Published files of pictures' models, and what takes them."""
ADVISING = ("pipeline", "command image")
"""Doors that answer such files by the command that converts them."""
NAMES = ("folder", "a b", "ünï", "model.safetensors", "x-of-y")
IDS = torch.randint(3, 131, (1, 12), generator=torch.Generator().manual_seed(0))


class Refused(Exception):
    """A command that ended with a message."""


def command(*argv: str) -> Any:
    """Run a command of the command line here."""
    out, error = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(error):
        code = boundary.run(lambda: build()([*argv], standalone_mode=False))
    if code:
        raise Refused(error.getvalue())
    return out.getvalue()


def opened(door: str, folder: Path) -> Any:
    """What comes out of a door."""
    if door == "model":
        return load_model(str(folder))
    if door == "pipeline":
        return mmspec.Pipeline.from_pretrained(str(folder))
    if door in COMMANDS:
        argv = [part.replace("OUT", str(folder.parent / "out")) for part in COMMANDS[door]]
        return command(*argv, str(folder))
    method, model = door.removeprefix("method ") if door != "drafter" else "auto", copy.deepcopy(target())
    with mmspec.enable(model, method, drafter=str(folder)):
        return model.generate(IDS, max_new_tokens=6, do_sample=False)


DOORS = ("model", "pipeline", "drafter", *(f"method {name}" for name in METHODS), *COMMANDS)


class Folders(Claim):
    """See the module."""

    name = "folders"
    share = 1.0
    fixed = 120
    needed = frozenset({"folder", "door"})

    def draw(self, dice: random.Random) -> Case:
        if dice.random() < 0.04:
            form = {"dtype": dice.choice(DTYPES), "form": dice.choice(FORMS)}
            return {"folder": dice.choice(sorted(OFFICIAL)), "door": dice.choice((CONVERT, *ADVISING)), **form}
        original = dice.random() < 0.4
        name = dice.choice(sorted(ORIGINALS if original else STRANGERS))
        doors = ("model", "drafter") if original and dice.random() < 0.7 else DOORS
        case: Case = {"folder": name, "door": dice.choice(doors)}
        if original and dice.random() < 0.8:
            case |= {"dtype": dice.choice(DTYPES), "form": dice.choice(FORMS)}
        if dice.random() < 0.4:
            case["beside"] = sorted(dice.sample(sorted(BESIDE), dice.randrange(1, 4)))
        if dice.random() < 0.3:
            case["name"] = dice.choice(NAMES)
        return case

    def write(self, case: Case, outer: Path) -> Path:
        """The folder of a case, inside of a folder."""
        folder, name = outer / case.get("name", "folder"), case["folder"]
        folder.mkdir()
        if name in ORIGINALS:
            ORIGINALS[name].write(folder, case.get("dtype", "float32"), case.get("form", "one"))
        else:
            STRANGERS[name][0](folder, str(outer / MARK))
        for beside in case.get("beside", ()) if name != "empty" else ():
            BESIDE[beside](folder, str(outer / MARK))
        return folder

    def run(self, case: Case) -> str:
        with TemporaryDirectory() as outer:
            if case["folder"] in OFFICIAL:
                return self._official(case, Path(outer))
            folder = self.write(case, Path(outer))
            before = contents(Path(outer))
            try:
                made, message = opened(case["door"], folder), ""
            except (ValueError, TypeError, Refused) as error:
                made, message = None, str(error)
            if contents(Path(outer)) != before:
                raise Broken(f"files were written, or code of a pickle ran: {message}")
            return self._judged(case, folder, made, message)

    def _official(self, case: Case, outer: Path) -> str:
        """Published files of pictures' models: whatever their form, the same pipeline is made of them."""
        layout, dtype = OFFICIAL[case["folder"]], case.get("dtype", "float32")
        given = write_official(outer / "files", layout, dtype, case.get("form", "one"))
        before = contents(outer)
        if case["door"] in ADVISING:
            try:
                taken, message = opened(case["door"], given[0]), ""
            except (ValueError, Refused) as error:
                taken, message = None, str(error)
            if taken is not None or f"mmspec convert {layout} {given[0]}" not in message or contents(outer) != before:
                raise Broken(f"it is not said which command converts them: {message}")
            return "refused"
        made = converted(given, layout, outer / "out")
        if {name: content for name, content in contents(outer).items() if not name.startswith("out")} != before:
            raise Broken("files beside the new folder were written")
        theirs = usual(layout, dtype)
        if made.keys() != theirs.keys() or not all(torch.equal(made[key], theirs[key]) for key in made):
            raise Broken("other weights come out than of the same files in one piece")
        return "converted"

    def _judged(self, case: Case, folder: Path, made: Any, message: str) -> str:
        original, door = ORIGINALS.get(case["folder"]), case["door"]
        if made is not None:
            if original is None and door != "command plan":  # which reads the config alone
                raise Broken("something else is taken")
            return self._compared(case, "" if original is None else original.recipe, made)
        pickled = case.get("form", "one").startswith("pickle")
        if original is not None and door == original.door and not (pickled and door == "model"):
            raise Broken(f"a published folder is refused: {message}")
        try:
            refuse_dangers(message)
        except AssertionError as error:
            raise Broken(str(error)) from error
        named = folder.name in message or door.startswith("command convert")
        if not named:
            raise Broken(f"the folder is not named: {message}")
        words = STRANGERS[case["folder"]][1] if original is None else original.words
        plain = door in ("model", "pipeline", "drafter", "command text", "method draft-model")
        if plain and not pickled and not any(word in message for word in words):
            raise Broken(f"it is not said what it is ({' or '.join(words)}): {message}")
        return "refused"

    def _compared(self, case: Case, recipe: str, made: Any) -> str:
        door = case["door"]
        if door == "model":
            theirs = reference(recipe, case.get("dtype", "float32"))
            with torch.no_grad():
                same = torch.equal(made(IDS).logits, theirs(IDS).logits)
            if not same:
                raise Broken("another model comes out")
            return "taken"
        if door == "drafter" or door.startswith("method "):
            theirs = target().generate(IDS, max_new_tokens=6, do_sample=False)
            if not torch.equal(made, theirs):
                raise Broken("another text comes out")
        return "taken"

    def space(self) -> Iterator[str]:
        yield from (f"folder:{name}" for name in (*ORIGINALS, *STRANGERS, *OFFICIAL))
        yield from (f"door:{name}" for name in (*DOORS, CONVERT))
        yield from (f"form:{name}" for name in FORMS)
        yield from (f"beside:{name}" for name in BESIDE)

    def parts(self, case: Case) -> Iterator[str]:
        yield f"folder:{case['folder']}"
        yield f"door:{case['door']}"
        yield f"form:{case.get('form', 'one')}"
        yield from (f"beside:{name}" for name in case.get("beside", ()))

    def program(self, case: Case) -> str:
        if case["folder"] in OFFICIAL:
            return f"from tests.draws.folders import CLAIM\n\nprint(CLAIM.run({case!r}))\n"
        return f"""from pathlib import Path
from tempfile import TemporaryDirectory
from tests.draws.folders import CLAIM, opened

case = {case!r}
with TemporaryDirectory() as outer:
    folder = CLAIM.write(case, Path(outer))
    print(sorted(path.name for path in folder.rglob("*")))
    print(opened(case["door"], folder))
"""


def contents(folder: Path) -> dict[str, bytes]:
    """All files below a folder."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


CLAIM = Folders()
