"""The recipe of a trained drafter: the numbers that decide what comes out, as a command's options; without torch."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast, get_args

from typer import Option

if TYPE_CHECKING:
    from mmspec.training.loop import LoopOptions
    from mmspec.training.losses import DraftLoss, Kind

DrafterKind = Literal[
    "eagle", "fspad", "falcon", "eagle3", "mtp", "medusa", "clover", "dflash", "ppd", "gated-lora", "pard",
    "model", "sorted", "layer-skip",
]  # fmt: skip
DRAFTERS: tuple[DrafterKind, ...] = get_args(DrafterKind)
KINDS_OWN: Mapping[DrafterKind, Mapping[str, Any]] = {
    # As in their papers, which learn one step, and from features with noise
    "eagle": {"hard": 0.0, "depth": 1},
    "fspad": {"hard": 0.0, "depth": 1},
    "falcon": {"depth": 2},  # the units of a block
    "eagle3": {"hard": 0.0},
    "medusa": {"depth": 5},  # as many heads as its authors' loader makes, whatever a config says
    "clover": {"loss": "hard", "decay": 0.7, "learning_rate": 1e-3},
    "dflash": {"depth": 7, "decay": math.exp(-1 / 4)},
    "ppd": {"hard": 0.0, "learning_rate": 1e-2},
    "gated-lora": {"loss": "hard", "depth": 8, "decay": 1.0, "learning_rate": 2e-4, "feature_weight": 1.0},
    "pard": {"depth": 8, "anchors": 512},
    "sorted": {"loss": "hard", "layers": 4, "learning_rate": 1e-4},
    "layer-skip": {"loss": "hard", "learning_rate": 1e-4},
}
"""Where a kind's usual recipe differs from `DrafterRecipe`."""
BLOCKS: tuple[DrafterKind, ...] = ("dflash", "ppd", "gated-lora", "pard")
DEEP: tuple[DrafterKind, ...] = ("eagle", "fspad", "falcon", "eagle3", "mtp", "medusa", "clover", *BLOCKS)
EXITS: tuple[DrafterKind, ...] = ("sorted", "layer-skip")
ONLY: Mapping[str, tuple[tuple[DrafterKind, ...], str]] = {
    "drafter_share": (("model",), "heads write no text, and learn from what the target writes (own_share)"),
    "draft_vocab": (("eagle3",), "others score all of the target's ids"),
    "head": (("eagle3",), "others begin anew"),
    "own_output": (("medusa",), "others score with the target's output layer, or with its rows (draft_vocab)"),
    "anchors": (BLOCKS, "others learn behind every token"),
    "draft_model": (("pard", "model"), "heads begin anew"),
    "reference": (("model",), "the references of others are trained beside them"),
    "block_share": (("pard",), "others learn whole drafts"),
    "recompute": (("ppd", "pard"), "others have few layers under training, or change them"),
    "rank": (("gated-lora",), "others have no LoRA"),
    "feature_weight": (("eagle", "fspad", "falcon", "gated-lora"), "others predict no feature of the target's"),
    "noise": (("eagle", "fspad", "falcon"), "others predict no feature of the target's"),
    "glance": (("falcon",), "others learn from the text as it is"),
    "intermediate": (
        ("eagle", "fspad", "falcon", "eagle3", "clover", "dflash"),
        "others have the sizes of the target's own layers, or no such layer",
    ),
    "depth": (DEEP, "draft models learn the next token alone"),
    "decay": (
        tuple(kind for kind in DEEP if kind != "falcon"),
        "draft models learn the next token alone, and falcon all units of a block alike",
    ),
    "layers": (
        ("dflash", "sorted"),
        "other heads have one layer, or none, and draft models have a share of the target's, or all",
    ),
    "keep_tokens": ((*DEEP, "model"), "others learn at several exits"),
    "dropout": (("layer-skip",), "others run all of their layers"),
    "exit_scale": (("layer-skip",), "others have no early exits, or weigh all the same"),
    "rotation": (("layer-skip",), "others have no early exits, or learn all in every step"),
}
"""Numbers of a recipe that some kinds have, and why."""


@dataclass(frozen=True)
class DrafterRecipe:
    """Lengths of a run, and its loss: the options of `mmspec train drafter`."""

    steps: Annotated[int, Option(min=1, help="Optimiser steps.")] = 600
    batch: Annotated[int, Option(min=1, help="Sequences of a batch.")] = 6
    batches: Annotated[int, Option(min=1, help="Batches of a step, in the memory of one.")] = 1
    context: Annotated[int, Option(min=8, help="Tokens of a sequence.")] = 320
    # And so the number of Medusa's heads, and one less than DFlash's block; a draft model learns the next unit alone
    depth: Annotated[int, Option(min=1, max=16, help="Tokens of a draft under training.")] = 3
    loss: Annotated[
        str, Option(help="kl, reverse-kl, jsd, tv, tv++, alpha, lk or hard; see mmspec.training.losses.")
    ] = "kl"
    beta: Annotated[float, Option(min=0.01, max=0.99, help="β of the loss jsd: the target's share of the mixture.")] = (
        0.5
    )
    hard: Annotated[float, Option(min=0, max=1, help="Share of the text's tokens in the loss.")] = 0.1
    # 0.8 in EAGLE-3 and Medusa, 0.6 in FastMTP, 0.78 in DFlash
    decay: Annotated[float, Option(min=0.01, max=1, help="Weight of a depth over that of the one before.")] = 0.8
    # EAGLE's, FSPAD's and Falcon's weights are 1 for features and 0.1 for distributions; gated-lora's is 1
    feature_weight: Annotated[
        float,
        Option(min=0, help="Weight of the distance of states (eagle, fspad, falcon, gated-lora) over that of scores."),
    ] = 10.0
    noise: Annotated[
        float, Option(min=0, help="Largest change of the features that eagle, fspad, falcon learn from.")
    ] = 0.1
    # As in the released code, whose shares fall from 0.45 to 0.1
    glance: Annotated[
        float, Option(min=0, max=1, help="Share of its errors that falcon is shown at first, before it learns them.")
    ] = 0.45
    learning_rate: Annotated[float, Option(min=1e-6, max=1, help="The peak.")] = 2e-3
    # None: as in a layer of the target, as are all other sizes of a head's layers
    intermediate: Annotated[int | None, Option(min=1, help="Numbers inside a head's MLPs.")] = None
    layers: Annotated[
        int, Option(min=1, max=64, help="Layers of a DFlash head; of the target, those of a sorted model.")
    ] = 2
    anchors: Annotated[
        int, Option(min=1, max=512, help="Most blocks of a sequence that dflash, ppd, gated-lora, pard learn.")
    ] = 64
    rank: Annotated[int, Option(min=1, max=1024, help="Rank of gated-lora's change of every linear layer.")] = 128
    draft_model: Annotated[
        str | None, Option(help="A draft model from which pard or model goes on: a folder or a hub name.")
    ] = None
    block_share: Annotated[float, Option(min=0.01, max=1, help="Share of pard's blocks that have one more mask.")] = 0.7
    recompute: Annotated[bool, Option(help="Run ppd's, pard's layers again for the gradient: less memory.")] = False
    # As in the paper and its authors' layout: the target's hidden width × its vocabulary for each head
    own_output: Annotated[
        bool, Option(help="Output layers for Medusa's heads, as in its authors' layout; without, they are in vLLM's.")
    ] = True
    own_share: Annotated[float, Option(min=0, max=1, help="Share of sequences that the target wrote.")] = 0.2
    # On-policy data of DistillSpec (arXiv 2310.08461, algorithm 1); a head writes no text
    drafter_share: Annotated[
        float, Option(min=0, max=1, help="Share of sequences that a draft model ends (DistillSpec).")
    ] = 0.0
    temperature: Annotated[float, Option(min=0, max=10, help="Of what the target writes; 0: greedy.")] = 0.8
    # None: all, with the target's output layer
    draft_vocab: Annotated[
        int | None, Option(min=1, help="Ids that an EAGLE-3 head scores: the most frequent ones.")
    ] = None
    head: Annotated[
        str | None, Option(help="A trained EAGLE-3 head in the format of speculators, from which training goes on.")
    ] = None
    # Those of LayerSkip's continued training of Llama 2 7B
    dropout: Annotated[float, Option(min=0, max=0.99, help="Chance that layer-skip's last layer is left out.")] = 0.1
    exit_scale: Annotated[float, Option(min=0, help="Weight of layer-skip's early exits over the last one's.")] = 0.2
    rotation: Annotated[int, Option(min=1, help="Steps between those in which layer-skip learns an early exit.")] = 8
    # The tokens from which most is to be learnt (arXiv 2510.19779); 1: all
    keep_tokens: Annotated[
        float, Option(min=0.01, max=1, help="Share of tokens that are learnt (AdaSPEC's filter: 0.4).")
    ] = 1.0
    # None: one that begins as the drafter does is trained for an epoch first
    reference: Annotated[
        str | None, Option(help="A distilled draft model, trained to its end: the reference of --keep-tokens.")
    ] = None
    seed: Annotated[int, Option(min=0, help="Of weights, of the order of sequences, of sampling.")] = 0

    def __post_init__(self) -> None:
        _ = self.draft_loss  # refuses a loss that there is not
        if self.context <= self.depth + 1:
            raise ValueError(
                f"sequences of {self.context} tokens (context) have no place for a draft of {self.depth} (depth)"
            )
        for name in ("hard", "own_share", "drafter_share"):
            if not 0 <= vars(self)[name] <= 1:
                raise ValueError(f"{name} is a share in [0, 1], and not {vars(self)[name]}")
        if not 1 <= self.anchors <= 512:
            raise ValueError(f"anchors are from 1 to 512, and not {self.anchors}")
        for name in ("keep_tokens", "block_share"):
            if not 0 < vars(self)[name] <= 1:
                raise ValueError(f"{name} is a share above 0 and up to 1, and not {vars(self)[name]}")
        if self.draft_vocab is not None and self.draft_vocab < 1:
            raise ValueError(f"draft_vocab is a number of ids, and not {self.draft_vocab}")
        if self.head is not None and (self.draft_vocab, self.intermediate) != (None, None):
            raise ValueError("a head from which training goes on has its own sizes: no draft_vocab, no intermediate")
        if self.reference is not None and self.keep_tokens == 1:
            raise ValueError("reference is what the filter of tokens compares with: give its share (keep_tokens), too")

    def refuse_for(self, kind: DrafterKind, reads: bool, writes: bool) -> None:
        """Refuse what has no effect on a kind of drafter, where no file is read, or where the target writes nothing."""
        given = {field.name for field in fields(self) if vars(self)[field.name] != field.default}
        for name, (only, why) in ONLY.items():
            if kind not in only and name in given:
                raise ValueError(f"{name} is for --kind {' or '.join(only)}, and not for {kind}: {why}")
        if "beta" in given and self.loss != "jsd":
            raise ValueError(f"beta is of the loss jsd, and this one is {self.loss} (loss)")
        if "own_share" in given and not (reads and writes):
            raise ValueError(
                "own_share is for texts beside what the target writes: give both (--data, --self-generated)"
            )
        if "temperature" in given and not (writes or self.drafter_share):
            raise ValueError("temperature is of what the target writes, and it writes nothing (--self-generated)")

    def of(self, kind: DrafterKind) -> dict[str, Any]:
        """The numbers that a kind of drafter has, by name."""
        foreign = {name for name, (only, _) in ONLY.items() if kind not in only}
        return {name: value for name, value in asdict(self).items() if name not in foreign}

    def loop(self, hidden: str | None) -> "LoopOptions":
        """The settings of the loop, in which Muon updates the matrices whose names begin with `hidden`; None: none."""
        from mmspec.training.loop import LoopOptions

        warmup = min(40, self.steps // 10)
        return LoopOptions(self.steps, self.learning_rate, warmup=warmup, hidden=hidden, batches=self.batches)

    @property
    def draft_loss(self) -> "DraftLoss":
        """The loss as data."""
        from mmspec.training.losses import DraftLoss

        return DraftLoss(cast("Kind", self.loss), self.hard, self.decay, self.beta, features=self.feature_weight)
