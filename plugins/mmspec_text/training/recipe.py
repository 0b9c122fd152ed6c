"""The recipe of a trained drafter: the numbers that decide what comes out."""

from dataclasses import dataclass
from typing import Literal, get_args

from mmspec.registry.suggest import unknown
from mmspec.training.loop import LoopOptions
from mmspec.training.losses import KINDS, DraftLoss, Kind

DrafterKind = Literal["eagle3", "mtp", "medusa", "model"]
DRAFTERS: tuple[DrafterKind, ...] = get_args(DrafterKind)


@dataclass(frozen=True)
class DrafterRecipe:
    """Lengths of a run, and its loss.

    Attributes:
        steps: Optimiser steps.
        batch: Sequences of a step.
        context: Units of a sequence.
        depth: Units of a draft under training, and so the number of Medusa's heads; a draft model learns the next
            unit alone.
        loss: The loss at one depth (`mmspec.training.losses`).
        hard: Share of the text's own units beside it, in [0, 1].
        decay: Weight of a depth over that of the one before (0.8 in EAGLE-3 and Medusa, 0.6 in FastMTP).
        learning_rate: The peak.
        intermediate: Numbers inside the MLP of an EAGLE-3 head.
        own_share: Share of sequences that the target wrote itself, where it writes any.
        temperature: Of what the target writes; 0: greedy.
        seed: Of initial weights, of what the target writes, and of the order of sequences.

    Raises:
        ValueError: A number is out of its range, or there is no such loss.
    """

    steps: int = 600
    batch: int = 6
    context: int = 320
    depth: int = 3
    loss: Kind = "kl"
    hard: float = 0.1
    decay: float = 0.8
    learning_rate: float = 2e-3
    intermediate: int = 512
    own_share: float = 0.2
    temperature: float = 0.8
    seed: int = 0

    def __post_init__(self) -> None:
        if self.loss not in KINDS:
            raise ValueError(unknown("loss", self.loss, KINDS))
        if self.context <= self.depth + 1:
            raise ValueError(
                f"sequences of {self.context} tokens (context) have no place for a draft of {self.depth} (depth)"
            )
        for name, share in (("hard", self.hard), ("own_share", self.own_share)):
            if not 0 <= share <= 1:
                raise ValueError(f"{name} is a share in [0, 1], and not {share}")

    def loop(self, hidden: str) -> LoopOptions:
        """The settings of the loop, in which Muon updates the matrices whose names begin with `hidden`."""
        return LoopOptions(self.steps, self.learning_rate, warmup=min(40, self.steps // 10), hidden=hidden)

    @property
    def draft_loss(self) -> DraftLoss:
        """The loss as data."""
        return DraftLoss(self.loss, self.hard, self.decay)
