"""The text that the shipped language models learn: Python's standard library, and prose from files.

The standard library's source (PSF licence) is on every machine that runs Python. Tests, generated tables and vendored
packages are left out. The held-out modules are fixed by name, so that every run holds out the same ones.
"""

import json
import sysconfig
from dataclasses import dataclass
from pathlib import Path

from mmspec.kits.text.bench.settings import HELD_OUT

HELD_OUT_MODULES = (
    "textwrap.py", "heapq.py", "queue.py", "sched.py", "shelve.py", "colorsys.py", "fnmatch.py", "netrc.py",
    "graphlib.py", "cmd.py", "mailcap.py", "timeit.py", "json/encoder.py", "logging/handlers.py", "http/cookies.py",
    "email/message.py", "importlib/util.py", "concurrent/futures/thread.py", "unittest/suite.py", "wsgiref/handlers.py",
)  # fmt: skip
HELD_OUT_PROSE = 0.05
"""The share of every prose file, at its end, that is held out."""

_SKIPPED_FOLDERS = frozenset(
    ["site-packages", "test", "tests", "idle_test", "__pycache__", "lib-dynload", "encodings", "pydoc_data"]
)
PIECES = 10
"""Pieces of each kind that benchmarks read."""
_CODE_FROM, _CODE_LENGTH, _PROSE_LENGTH = 600, 2600, 2200
_LARGEST = 300_000
"""Files of so many characters or more are left out; they are tables."""


@dataclass(frozen=True)
class Corpus:
    """Documents as text: `code` and `prose` to train on, and the same two held out."""

    code: list[str]
    prose: list[str]
    held_out_code: list[str]
    held_out_prose: list[str]

    @property
    def documents(self) -> list[str]:
        """All four together."""
        return [*self.code, *self.prose, *self.held_out_code, *self.held_out_prose]


def load(prose_files: list[Path], stdlib: Path | None = None) -> Corpus:
    """Read the corpus.

    Args:
        prose_files: Plain-text files in UTF-8.
        stdlib: The root of the standard library; default: that of the running interpreter.

    Raises:
        ValueError: A prose file is missing, or has no blank line where its held-out part should begin.
    """
    root = stdlib or Path(sysconfig.get_paths()["stdlib"])
    code, held_out_code = list[str](), list[str]()
    for path in sorted(root.rglob("*.py")):
        name = path.relative_to(root)
        if _SKIPPED_FOLDERS & set(name.parts) or name.name.startswith("_sysconfigdata"):
            continue
        text = path.read_text(encoding="utf-8", errors="ignore")
        if 0 < len(text) < _LARGEST:
            (held_out_code if name.as_posix() in HELD_OUT_MODULES else code).append(text)
    prose, held_out_prose = [], []
    for path in prose_files:
        if not path.is_file():
            raise ValueError(f"no prose file at {path}; give a plain UTF-8 text file")
        text = path.read_text(encoding="utf-8")
        cut = text.find("\n\n", int(len(text) * (1 - HELD_OUT_PROSE)))
        if cut < 0:
            raise ValueError(f"{path} has no blank line in its last {HELD_OUT_PROSE:.0%}, to cut the held-out part at")
        prose.append(text[:cut])
        held_out_prose.append(text[cut:].lstrip())
    return Corpus(code, prose, held_out_code, held_out_prose)


def write_held_out(folder: Path, corpus: Corpus) -> None:
    """Write pieces of the held-out documents, in whole lines, into `folder`."""
    code = [_lines(text[_CODE_FROM : _CODE_FROM + _CODE_LENGTH]) for text in corpus.held_out_code]
    prose = "\n\n".join(corpus.held_out_prose)
    step = max(1, (len(prose) - _PROSE_LENGTH) // PIECES)
    pieces = {
        "code": [text for text in code if text][:PIECES],
        "prose": [_lines(prose[i * step : i * step + _PROSE_LENGTH]) for i in range(PIECES)],
    }
    (folder / HELD_OUT).write_text(json.dumps(pieces, indent=1) + "\n")


def _lines(piece: str) -> str:
    """The piece without its first and last line, which are cut."""
    return "".join(piece.splitlines(keepends=True)[1:-1])
