"""Held-out text for benchmarks of language models, stored beside the shipped text target.

It has pieces of documents that the models were not trained on: Python's standard library (Python Software Foundation
License 2.0) and Shakespeare (public domain).
"""

import json
from pathlib import Path

from mmspec import shipped
from mmspec.kits.text.corpus import Corpus

NAME = "held_out.json"
PIECES = 10
_CODE_FROM, _CODE_LENGTH, _PROSE_LENGTH = 600, 2600, 2200


def write(folder: Path, corpus: Corpus) -> None:
    """Write pieces of the held-out documents, in whole lines, into `folder`."""
    code = [_lines(text[_CODE_FROM : _CODE_FROM + _CODE_LENGTH]) for text in corpus.held_out_code]
    prose = "\n\n".join(corpus.held_out_prose)
    step = max(1, (len(prose) - _PROSE_LENGTH) // PIECES)
    pieces = {
        "code": [text for text in code if text][:PIECES],
        "prose": [_lines(prose[i * step : i * step + _PROSE_LENGTH]) for i in range(PIECES)],
    }
    (folder / NAME).write_text(json.dumps(pieces, indent=1) + "\n")


def read(model: str = "text-14m") -> dict[str, list[str]]:
    """Held-out pieces by kind of text: `code` and `prose`."""
    pieces: dict[str, list[str]] = json.loads((shipped.asset(model) / NAME).read_text())
    return pieces


def _lines(piece: str) -> str:
    """The piece without its first and last line, which are cut."""
    return "".join(piece.splitlines(keepends=True)[1:-1])
