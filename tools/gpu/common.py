"""What all steps share: arguments, the device, lines of JSON that are on disk at once, clocks, models, prompts."""

import argparse
import fcntl
import os
import statistics
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor

from mmspec.bench.timing import synchronize, timed
from mmspec.core.compile import launch
from mmspec.core.out_of_memory import out_of_memory
from mmspec.core.types import Draft
from mmspec.core.warp import Warp
from mmspec.hosts.loading import load_tokenizer
from mmspec.kits.text.bench.settings import left_padded, texts
from tools.bench.core.sections import Lines, TimeUp, alarm
from tools.bench.core.shape import Workload
from tools.bench.core.shapes import chosen_shapes

HALF = torch.bfloat16
GREEDY = Warp(sample=False)
MODES: Mapping[str, bool | None] = {"default": None, "compiled": True, "eager": False}
"""The ways to run a round, as the argument `compile` of decoders."""
TELLING = ("captured", "compiled", "recorded", "eager", "fault", "failed", "shape")
"""Words of warnings that belong into the results."""


class Step:
    """A step of a lease: its time, its device, and its lines, each on disk when it is known.

    Args:
        name: What its lines call it.
    """

    def __init__(self, name: str) -> None:
        parser = argparse.ArgumentParser(name)
        parser.add_argument("--out", type=Path, default=Path("."), help="the folder of lines.jsonl")
        parser.add_argument("--seconds", type=float, default=600.0, help="time of this step")
        parser.add_argument("--dry", action="store_true", help="on the CPU, at sizes that show errors and no speed")
        parser.add_argument("--go", type=Path, help="before anything is timed: wait for this file")
        parser.add_argument("--only", default="", help="of several, these, joined by commas")
        parser.add_argument("--modes", default="", help="of default, compiled and eager, these, joined by commas")
        parser.add_argument("--home", type=Path, default=Path("."), help="the folder of a model to train for")
        self.arguments = parser.parse_args()
        self.name, self.dry, self.go = name, self.arguments.dry, self.arguments.go
        self.device = torch.device("cpu" if self.dry else "cuda")
        self.failed = False
        self._began = time.monotonic()
        self.arguments.out.mkdir(parents=True, exist_ok=True)
        file = (self.arguments.out / "lines.jsonl").open("a", encoding="utf-8")
        self._lines = Lines(file, lambda line: print(line, flush=True))
        transformers.logging.set_verbosity_error()
        if self.dry:  # rounds are traced, and not compiled
            launch.BACKEND = os.environ.get("DRY_BACKEND", "eager")

    def chosen(self, known: Sequence[str]) -> list[str]:
        """Those of `--only`, or all."""
        return self.arguments.only.split(",") if self.arguments.only else list(known)

    def modes(self) -> list[str]:
        """Those of `--modes`, or all."""
        return self.arguments.modes.split(",") if self.arguments.modes else list(MODES)[: 2 if self.dry else None]

    def left(self) -> float:
        """Seconds until the step should end."""
        return float(self.arguments.seconds) - (time.monotonic() - self._began)

    def say(self, section: str, **figures: Any) -> None:
        """One line, written and shown at once."""
        self._lines.say(section, step=self.name, **figures)

    def section(
        self, name: str, work: Callable[[], None], least: float = 5.0, keep: float | None = None, **about: Any
    ) -> None:
        """Run a piece of work whose failure is a line.

        It does not run if fewer than `least` seconds are left, and is stopped when `keep` are left; None: never.
        """
        if self.left() < least:
            return self.say(name, **about, skipped=f"{self.left():.0f} s left")
        began, failed = time.monotonic(), dict[str, Any]()
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            try:
                with nullcontext() if keep is None else alarm(max(0.1, self.left() - keep)):
                    work()
            except TimeUp:
                failed = {"failed": f"stopped {self.left():.0f} s before the end of the step"}
            except Exception as error:
                frames = traceback.extract_tb(error.__traceback__)[::-1][:6]
                at = " < ".join(f"{Path(frame.filename).name}:{frame.lineno}" for frame in frames)
                failed = {"failed": f"{type(error).__name__}: {str(error)[:400]}", "at": at}
                if out_of_memory(error):
                    torch.cuda.empty_cache()
        first = {str(w.message).splitlines()[0][:300] for w in said if issubclass(w.category, UserWarning)}
        told = sorted(line for line in first if any(word in line for word in TELLING))
        self.failed = self.failed or bool(failed)
        self.say(
            name, **about, **failed, **({"warned": told} if told else {}), seconds=round(time.monotonic() - began, 1)
        )

    @contextmanager
    def alone(self) -> Iterator[None]:
        """A block in which no other step times anything; the steps that test are over by then (`--go`)."""
        if self.go is None:
            yield
            return
        while not self.go.exists() and self.left() > 20:
            time.sleep(0.2)
        with self.go.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def sync(self) -> None:
        synchronize(str(self.device))

    def wall_ms(self, work: Callable[[], Any], repeats: int = 20, warm: int = 3) -> float:
        """Median wall milliseconds, the device's work included."""
        for _ in range(warm):
            work()
        took = [timed(work, str(self.device)) for _ in range(3 if self.dry else repeats)]
        return round(1e3 * statistics.median(took), 4)

    def device_ms(self, work: Callable[[], Any], repeats: int = 30) -> float:
        """Mean milliseconds on the device of work that is issued back to back."""
        if self.dry:
            return self.wall_ms(work, 3)
        for _ in range(3):
            work()
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        self.sync()
        first.record()
        for _ in range(repeats):
            work()
        last.record()
        last.synchronize()
        return round(first.elapsed_time(last) / repeats, 4)

    def workload(self, name: str, dtype: torch.dtype = HALF, **numbers: Any) -> Workload:
        """A model of a published size with random weights, made on the device; dry, a tiny one of its architecture."""
        (shape,) = chosen_shapes(name)
        return replace(shape, numbers={**shape.numbers, **numbers}).workload(self.device, dtype, small=self.dry)

    def pieces(self, rows: int, length: int, seed: int = 0) -> dict[str, Tensor]:
        """Beginnings of the shipped text model's held-out texts, each row shorter than the one before."""
        kinds = texts(load_tokenizer(self.text)).values()
        known = [piece for group in zip(*kinds, strict=False) for piece in group]
        chosen = [known[(rows * seed + row) % len(known)][0, : length - 7 * row] for row in range(rows)]
        return left_padded(chosen, str(self.device))

    @property
    def text(self) -> str:
        """The shipped text model of this step."""
        return "mmspec/text-1m" if self.dry else "mmspec/text-14m"

    def prompt(self, rows: int, length: int, vocab: int, seed: int = 1) -> dict[str, Tensor]:
        """Random ids, and the mask that sees all of them."""
        drawn = torch.randint(3, vocab, (rows, length), generator=torch.Generator().manual_seed(seed)).to(self.device)
        return {"input_ids": drawn, "attention_mask": torch.ones_like(drawn)}


def rooted(root: Tensor, parents: Sequence[int]) -> Draft:
    """A rooted draft of the root's units with the tree `parents`."""
    if not parents:
        return Draft.alone(root)
    return Draft.tree(root[:, None].expand(-1, len(parents)), tuple(parents)).rooted(root, root + len(parents))
