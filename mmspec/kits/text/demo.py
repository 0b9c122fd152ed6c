"""`mmspec demo` of language models: they answer, or go on writing, plainly and speculatively, in one race."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from transformers.utils.logging import disable_progress_bar

from mmspec.bench.generate import GenerateCall, PeerGenerate
from mmspec.bench.race import Track, race
from mmspec.bench.rows import seconds_and_speedup
from mmspec.hosts.loading import load_model, load_tokenizer
from mmspec.kits.text.bench.contestants import OurMethod
from mmspec.kits.text.bench.settings import named
from mmspec.kits.text.language import asked, encoded, without_kernel_notices
from mmspec.report import terminal
from mmspec.report.result import PLAIN

WRITTEN = (
    (
        "Python",
        'class Stack:\n    """A list."""\n\n    def __init__(self):\n        self._items = []\n\n    def push(',
        0.0,
    ),
    ("Shakespeare", "KING RICHARD II:\nWhat say you, cousin? Shall we ", 0.8),
)
"""Title, prompt and temperature of every race of the shipped models."""
METHODS: Mapping[str, Mapping[str, Any]] = {
    PLAIN: {},
    "prompt-lookup": {"k": 6},
    "draft-model": {"drafter": "mmspec/text-1m", "k": 4},
}
"""Their methods with their options; a draft model is given by its name."""
STOCK = "transformers"  # what a user has today: `generate` as it is
COLUMNS = ("method", "exactness", "acceptance length", "seconds", f"× {STOCK}", f"× {PLAIN}")
NEW_TOKENS, REPEATS, SHOWN_LINES = 80, 2, 8


def run_demo(
    target: str,
    methods: Mapping[str, Mapping[str, Any]] = METHODS,
    written: Sequence[tuple[str, str, float]] = WRITTEN,
) -> None:
    """Print, for each prompt (as in `WRITTEN`; questions for a model with a chat template) and each of `METHODS`, the
    first lines, acceptance length, and speed-up over transformers and over plain.
    """
    disable_progress_bar()
    console = terminal.terminal()
    model, tokenizer = load_model(target), load_tokenizer(target)
    drafters = {name: load_model(name) for name in {o["drafter"] for o in methods.values() if "drafter" in o}}
    live = {m: {**o, **({"drafter": drafters[o["drafter"]]} if "drafter" in o else {})} for m, o in methods.items()}
    for title, prompt, temperature in written:
        inputs = encoded(asked(prompt, tokenizer), tokenizer)
        shown = [] if tokenizer.chat_template else inputs["input_ids"][0].tolist()
        call = GenerateCall(model, NEW_TOKENS, temperature, seed=0, ends=True)
        ours = {name: OurMethod(call, {"method": name, **options}) for name, options in live.items()}
        with without_kernel_notices():
            tracks = race({STOCK: PeerGenerate(call), **ours}, [inputs], REPEATS)
        terminal.line(console, f"\n{named(title, temperature)}, seed 0", "bold underline")
        for units, names in _by_text(tracks).items():
            terminal.line(console, f"{', '.join(names)} wrote:", "bold")
            terminal.line(console, _first_lines(tokenizer.decode([*shown, *units], skip_special_tokens=True)))
        terminal.table(console, COLUMNS, _numbers(tracks), whole=("method",), boxed=True)


def _by_text(tracks: Mapping[str, Track]) -> dict[tuple[int, ...], list[str]]:
    """The different outputs, each with the names of the methods that wrote it."""
    texts: dict[tuple[int, ...], list[str]] = {}
    for name, track in tracks.items():
        texts.setdefault(tuple(track.runs[-1][0].units[0].tolist()), []).append(name)
    return texts


def _numbers(tracks: Mapping[str, Track]) -> Iterator[tuple[str, ...]]:
    for name, track in tracks.items():
        report = track.runs[-1][0].report
        exactness, length = (report.exactness, f"{report.acceptance_length:.2f}") if report else ("", "")
        yield name, exactness, length, *seconds_and_speedup(track, tracks[STOCK], tracks[PLAIN])


def _first_lines(text: str) -> str:
    lines = text.splitlines()
    return "\n".join(lines[:SHOWN_LINES] + (["…"] if len(lines) > SHOWN_LINES else []))
