"""The recipe of a trained drafter: the numbers that decide what comes out."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, get_args

from mmspec.registry.suggest import unknown
from mmspec.training.loop import LoopOptions
from mmspec.training.losses import KINDS, DraftLoss, Kind

DrafterKind = Literal["eagle3", "mtp", "medusa", "dflash", "model"]
DRAFTERS: tuple[DrafterKind, ...] = get_args(DrafterKind)
KINDS_OWN: Mapping[DrafterKind, Mapping[str, Any]] = {"dflash": {"depth": 7, "decay": math.exp(-1 / 4)}}
"""Where a kind's usual recipe differs from `DrafterRecipe`."""
ONLY: Mapping[str, tuple[DrafterKind, str]] = {
    "drafter_share": ("model", "heads write no text, and learn from what the target writes (own_share)"),
    "draft_vocab": ("eagle3", "others score all of the target's ids"),
    "anchors": ("dflash", "others learn behind every token"),
    "layers": ("dflash", "other heads have one layer, or none, and a draft model has a share of the target's"),
}
"""Numbers of a recipe that one kind has, and why."""


@dataclass(frozen=True)
class DrafterRecipe:
    """Lengths of a run, and its loss.

    Raises:
        ValueError: A number is out of its range, or there is no such loss.
    """

    steps: int = 600  # optimiser steps
    batch: int = 6  # sequences of a step
    context: int = 320  # units of a sequence
    # Units of a draft under training, and so the number of Medusa's heads, and one less than DFlash's block; a draft
    # model learns the next unit alone
    depth: int = 3
    loss: Kind = "kl"  # the loss at one depth (`mmspec.training.losses`).
    hard: float = 0.1  # share of the text's own units beside it, in [0, 1]
    # Weight of a depth over that of the one before (0.8 in EAGLE-3 and Medusa, 0.6 in FastMTP, 0.78 in DFlash).
    decay: float = 0.8
    learning_rate: float = 2e-3  # the peak
    intermediate: int = 512  # numbers inside the MLPs of an EAGLE-3 or DFlash head
    layers: int = 2  # layers of a DFlash head
    anchors: int = 64  # most roots of a sequence behind which a DFlash head learns a block; from 1 to 512
    own_share: float = 0.2  # share of sequences that the target wrote itself, where it writes any
    # Share of sequences whose end a draft model writes itself while it learns (on-policy data of DistillSpec, arXiv
    # 2310.08461, algorithm 1); a head writes no text.
    drafter_share: float = 0.0
    temperature: float = 0.8  # of what the target, and a draft model that learns, write; 0: greedy
    # Ids that an EAGLE-3 head scores, the most frequent ones; None: all, with the target's output layer
    draft_vocab: int | None = None
    # Share of the tokens of a batch that are learnt, those from which most is to be learnt (AdaSPEC, arXiv 2510.19779);
    # 1: all.
    keep_tokens: float = 1.0
    seed: int = 0  # of initial weights, of what the target writes, and of the order of sequences

    def __post_init__(self) -> None:
        if self.loss not in KINDS:
            raise ValueError(unknown("loss", self.loss, KINDS))
        if self.context <= self.depth + 1:
            raise ValueError(
                f"sequences of {self.context} tokens (context) have no place for a draft of {self.depth} (depth)"
            )
        for name in ("hard", "own_share", "drafter_share"):
            if not 0 <= vars(self)[name] <= 1:
                raise ValueError(f"{name} is a share in [0, 1], and not {vars(self)[name]}")
        if not 1 <= self.anchors <= 512:
            raise ValueError(f"anchors are from 1 to 512, and not {self.anchors}")
        if not 0 < self.keep_tokens <= 1:
            raise ValueError(f"keep_tokens is a share above 0 and up to 1, and not {self.keep_tokens}")
        if self.draft_vocab is not None and self.draft_vocab < 1:
            raise ValueError(f"draft_vocab is a number of ids, and not {self.draft_vocab}")

    def refuse_for(self, kind: DrafterKind) -> None:
        """Refuse what a kind of drafter has not.

        Raises:
            ValueError: Names the kind that has it.
        """
        for name, (only, why) in ONLY.items():
            usual = next(field.default for field in fields(self) if field.name == name)
            if kind != only and vars(self)[name] != usual:
                raise ValueError(f"{name} is for --kind {only}, and not for {kind}: {why}")

    def of(self, kind: DrafterKind) -> dict[str, Any]:
        """The numbers that a kind of drafter has, by name."""
        foreign = {name for name, (only, _) in ONLY.items() if only != kind}
        return {name: value for name, value in asdict(self).items() if name not in foreign}

    def loop(self, hidden: str) -> LoopOptions:
        """The settings of the loop, in which Muon updates the matrices whose names begin with `hidden`."""
        return LoopOptions(self.steps, self.learning_rate, warmup=min(40, self.steps // 10), hidden=hidden)

    @property
    def draft_loss(self) -> DraftLoss:
        """The loss as data."""
        return DraftLoss(self.loss, self.hard, self.decay)
