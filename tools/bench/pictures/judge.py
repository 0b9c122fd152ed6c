"""Numbers about pictures, beside how fast they were drawn; among them the step compression of what they show.

Blank background is easy to guess, and there is much of it. A cell is background where all of its pixels, in the decoded
picture, are blank: emoji stand on white. Every pass is charged to the one unit that it drew itself: the last one that
it emitted, at which its accepted drafts end (all others of that pass were drafts). So the charges add up to the passes,
plain decoding has a compression of 1 whatever the units show, and a unit costs a pass exactly where guessing failed.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from einops import rearrange
from torch import Tensor

from mmspec.bench.rows import biases
from mmspec.kits.pictures.prompts import tokens_of
from tools.bench.pictures.contestants import OwnMethod
from tools.bench.pictures.quality import Quality
from tools.bench.pictures.tasks import Task, groups, joined

AT_ONCE = 8
"""Pictures of a batch where nothing is timed."""


def notes(unit: str) -> dict[str, str]:
    """What the numbers of a row's quality are.

    Args:
        unit: The name of a unit: code, token, ….
    """
    return {
        "step_compression": "passes of plain decoding / own passes",
        "foreground": f"share of the {unit}s that show something; the pixels of all others are blank",
        "compression_foreground": f"step compression of the {unit}s that show something; every pass is charged to the "
        f"one {unit} that it drew itself, the one at which its accepted drafts end",
        "frechet": "distance to the training pictures in the features of a small network; few pictures make it large, "
        "so it compares with the other seeds of plain decoding, as many pictures each",
        "caption_score": "mean cosine of pictures and captions in those features",
        "tv": f"of a lossy rule, mean total variation per {unit}",
        "altered": f"of a lossy rule, {unit}s a picture that are expected to be others than the model's",
        "excess_acceptance": "of a lossy rule, its acceptance less an exact rule's, per draft that was decided",
    }


@dataclass(frozen=True)
class Judge:
    """Judges pictures after they were timed."""

    pipe: Any  # the pipeline: it decodes units, and has the tokenizer of captions
    quality: Quality  # the small network and the training pictures

    def looks(self, pictures: Tensor, captions: Sequence[str]) -> dict[str, float]:
        """`frechet` and `caption_score` of pictures `[n, 3, height, width]` and their captions."""
        words = tokens_of(captions, self.pipe.tokenizer, self.pipe.transformer.config.cls_token_num)
        score = self.quality.caption_score(pictures, *words)
        return {"frechet": round(self.quality.distance(pictures), 4), "caption_score": round(score, 4)}

    def pictures(self, runs: Sequence[Any]) -> Tensor:
        """What the units of several runs show, one after the other: `[n, 3, height, width]`, on the CPU."""
        units = torch.stack([row for run in runs for row in run.units]).to(self.pipe.transformer.device)
        return torch.cat([self.pipe.decode_units(part).float().cpu() for part in units.split(32)])

    def numbers(self, runs: Sequence[Any], plain: Sequence[Any], captions: Sequence[str]) -> dict[str, float]:
        """The quality of one method's pictures.

        Args:
            runs: The method's calls (`Drawn`), one picture each.
            plain: Plain decoding's calls for the same tasks.
            captions: The tasks' captions.
        """
        pictures = self.pictures(runs)
        shown = foreground(pictures, self.pipe.transformer.config.grid)
        own, base = (sum(len(run.after) - 1 for run in calls) for calls in (runs, plain))
        found = {"step_compression": round(base / own, 4), "foreground": round(float(shown.float().mean()), 4)}
        part = compression(([count[0] for count in run.after], row) for run, row in zip(runs, shown, strict=True))
        found |= {} if part is None else {"compression_foreground": round(part, 4)}
        return found | self.looks(pictures, captions) | biases([run.report for run in runs])

    def floor(
        self, plain: OwnMethod, sets: Sequence[Sequence[Task]], tick: Callable[[], None]
    ) -> dict[str, list[float]]:
        """`looks` of several sets of pictures by plain decoding, in batches, which change no row's distribution.

        Args:
            plain: Plain decoding.
            sets: Tasks of one picture each, with other seeds than the pictures that are compared with them.
            tick: Called after every call.
        """
        found = dict[str, list[float]]()
        for tasks in sets:
            runs = []
            for some in groups(tasks, AT_ONCE):
                runs.append(plain(joined(some)))
                tick()
            captions = [caption for task in tasks for caption in task.captions]
            for name, value in self.looks(self.pictures(runs), captions).items():
                found.setdefault(name, []).append(value)
        return found


BLANK = 0.9
"""Pixels in [-1, 1] that are at least as bright, in all channels, are blank: a tokenizer's white is not quite 1."""


def foreground(pictures: Tensor, grid: int) -> Tensor:
    """Cells that show something: `[n, cells]` bool of pictures `[n, channel, height, width]` in [-1, 1]."""
    cells = rearrange(pictures, "n c (row y) (column x) -> n (row column) (c y x)", row=grid, column=grid)
    return (cells < BLANK).any(-1)


def charged(after: Sequence[int]) -> list[int]:
    """Places of the units that the passes of one row drew themselves.

    Args:
        after: How many units it had after prefill, after the first pass, ….
    """
    return [now - 1 for before, now in pairwise(after) if now > before]


def compression(rows: Iterable[tuple[Sequence[int], Tensor]]) -> float | None:
    """Units that count / passes charged to them; what prefill emitted is left out. None where none were charged.

    Args:
        rows: Of each row `after`, as in `charged`, and `[cells]` bool: the units that count.
    """
    units = passes = 0
    for after, counts in rows:
        units += int(counts[after[0] :].sum())
        passes += int(counts[charged(after)].sum())
    return units / passes if passes else None
