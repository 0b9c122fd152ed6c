"""Numbers about pictures, beside how fast they were drawn."""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mmspec.kits.pictures.bench.contestants import Drawn, Ours
from mmspec.kits.pictures.bench.foreground import compression, foreground
from mmspec.kits.pictures.bench.tasks import Task, joined, parts
from mmspec.kits.pictures.prompts import tokens_of
from mmspec.kits.pictures.quality import Quality

AT_ONCE = 8
"""Pictures of a batch where nobody looks at the clock."""


def notes(unit: str) -> dict[str, str]:
    """What the numbers are.

    Args:
        unit: What a unit is called.
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
    """Looks at what was drawn, when the clock is stopped.

    Attributes:
        pipe: Decodes units, and knows the words of captions.
        quality: The small network and the training pictures.
    """

    pipe: Any
    quality: Quality

    def looks(self, pictures: Tensor, captions: Sequence[str]) -> dict[str, float]:
        """Of pictures `[n, 3, height, width]` and their captions."""
        words = tokens_of(captions, self.pipe.tokenizer, self.pipe.transformer.config.cls_token_num)
        score = self.quality.caption_score(pictures, *words)
        return {"frechet": round(self.quality.distance(pictures), 4), "caption_score": round(score, 4)}

    def pictures(self, runs: Sequence[Any]) -> Tensor:
        """What the units of several runs show, one after the other: `[n, 3, height, width]`, on the CPU."""
        units = torch.stack([row for run in runs for row in run.units]).to(self.pipe.transformer.device)
        return torch.cat([self.pipe.decode_units(part).float().cpu() for part in units.split(32)])

    def numbers(self, runs: Sequence[Drawn], plain: Sequence[Drawn], captions: Sequence[str]) -> dict[str, float]:
        """Of one method.

        Args:
            runs: Its calls, one picture each.
            plain: Plain decoding's calls for the same tasks.
            captions: Of the tasks.
        """
        pictures = self.pictures(runs)
        shown = foreground(pictures, self.pipe.transformer.config.grid)
        own, theirs = (sum(len(run.after) - 1 for run in calls) for calls in (runs, plain))
        found = {"step_compression": round(theirs / own, 4), "foreground": round(float(shown.float().mean()), 4)}
        part = compression(([count[0] for count in run.after], row) for run, row in zip(runs, shown, strict=True))
        found |= {} if part is None else {"compression_foreground": round(part, 4)}
        return found | self.looks(pictures, captions) | biases(runs)

    def floor(self, plain: Ours, sets: Sequence[Sequence[Task]], tick: Callable[[], None]) -> dict[str, list[float]]:
        """`looks` of several sets of pictures, which plain decoding draws in batches; these change no row's
        distribution.

        Args:
            plain: Draws.
            sets: Tasks of one picture each: other seeds than those that are compared with it.
            tick: Called after every call.
        """
        found = dict[str, list[float]]()
        for tasks in sets:
            runs = []
            for some in parts(tasks, AT_ONCE):
                runs.append(plain(joined(some)))
                tick()
            captions = [caption for task in tasks for caption in task.captions]
            for name, value in self.looks(self.pictures(runs), captions).items():
                found.setdefault(name, []).append(value)
        return found


def biases(runs: Sequence[Drawn]) -> dict[str, float]:
    """What a lossy rule did, mean over its pictures; nothing of an exact one."""
    measured = [run.report.bias for run in runs if run.report is not None and run.report.bias is not None]
    names = ("tv", "altered", "excess_acceptance") if measured else ()
    return {name: round(statistics.mean(getattr(bias, name) for bias in measured), 6) for name in names}
