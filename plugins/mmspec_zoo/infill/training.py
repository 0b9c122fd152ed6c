"""Training of an any-order model: an XLNet learns to fill blanks from left to right, whatever is known.

Guo and Ermon, arXiv 2504.20456, § 4, from the released code (gabeguo/any-order-speculative-decoding: the joint mask of
`finetune_xlnet_distributed.py`, numbers of `_run_training.sh`). Of a sequence so many tokens, drawn anywhere, are
blanks, and every one is learnt given the known ones and the blanks on its left: the pass of a target that verifies. The
share of blanks is drawn between two bounds, which rise from 0.15 to 0.85 and 0.99 over the first steps, since a
model that was trained to fill a few does not know at first how to fill many. All sequences of a batch have as many.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import PreTrainedTokenizerBase, XLNetLMHeadModel

from mmspec.files import save_sealed
from mmspec.hosts.fingerprint import identity
from mmspec.registry.printable import shown
from mmspec.training.loop import LoopOptions, fit
from mmspec.training.work import claimed, digest
from mmspec.untrusted import numbered_json_lines
from mmspec_zoo.infill.any_order import View
from mmspec_zoo.infill.xlnet import MASK, XLNetTarget, logits_of

MOST = 1 << 30
"""Most bytes of a file of texts."""
HELD_OUT, WINDOWS = 0.05, 32
"""The share of the tokens, at their end, that is held out; and at most so many sequences of it."""
FIRST, LEAST, LAST = 0.15, 0.85, 0.99
"""The share of blanks at first, and the bounds that it rises to."""
ASKED = 0.95
"""The share of blanks in what is counted."""


@dataclass(frozen=True)
class InfillRecipe:
    """Lengths."""

    steps: int = 5000  # optimiser steps
    batch: int = 8  # sequences of a batch
    context: int = 512  # tokens of a sequence
    rising: int = 5000  # steps in which the share of blanks rises
    learning_rate: float = 1e-5  # the peak
    anew: bool = False  # whether the model's weights are drawn anew
    seed: int = 0  # of weights, of places, of blanks


def blanked(ids: Tensor, blanks: int, g: torch.Generator) -> View:
    """The pass over sequences `[batch, length]` of which so many tokens, drawn anywhere, are blanks to be filled from
    left to right.
    """
    order = torch.rand(ids.shape, generator=g).argsort(1).argsort(1)
    blank = order < blanks
    rank = torch.where(blank, blank.cumsum(1), 0).to(ids.device)
    asked = blank.nonzero()[:, 1].view(len(ids), blanks).to(ids.device)
    return View(ids, rank, asked, torch.zeros_like(asked, dtype=torch.bool))


def share_at(step: int, rising: int, g: torch.Generator) -> float:
    """The share of blanks in a step."""
    risen = min(1.0, step / rising)
    low, high = (FIRST + (end - FIRST) * risen for end in (LEAST, LAST))
    return low + (high - low) * float(torch.rand((), generator=g))


def infill_loss(model: Any, view: View) -> Tensor:
    """The mean cross entropy of the blanks' tokens, in nats, each given what is filled before it."""
    return cross_entropy(logits_of(model, view).flatten(0, 1).float(), view.ids.gather(1, view.asked).flatten())


@torch.no_grad()
def held_out(model: Any, windows: Tensor) -> float:
    """Nats a blank of held-out sequences, most of whose tokens are blanks."""
    g, model = torch.Generator().manual_seed(0), model.eval()
    found = [infill_loss(model, blanked(one, _count(one, ASKED), g)) for one in windows.split(1)]
    return round(float(torch.stack(found).mean()), 4)


def train_and_write(
    model: XLNetLMHeadModel,
    tokenizer: PreTrainedTokenizerBase,
    units: Tensor,
    recipe: InfillRecipe,
    folder: Path,
    work: Path,
    *,
    name: str,
    say: Callable[[str], None],
) -> dict[str, Any]:
    """Train a model of that name on tokens `[unit]`, or go on with it, and write its folder; returns its facts.

    Refuses an XLNet for texts of one direction, and too little text.
    """
    XLNetTarget(model)  # refuses one that fills no blanks
    own = {"target": name, "weights": identity(model), "data": digest([units])}
    held = units[-round(HELD_OUT * len(units)) :]
    windows = held[: len(held) // recipe.context * recipe.context].view(-1, recipe.context)[:WINDOWS].to(model.device)
    learnt = units[: len(units) - len(held)]
    if not len(windows) or len(learnt) <= recipe.context:
        raise ValueError(
            f"there are {len(units):,} tokens of text, and the {HELD_OUT:.0%} held out have to make a sequence "
            f"of {recipe.context} (context): give more text, or a smaller context"
        )
    if recipe.anew:
        torch.manual_seed(recipe.seed)
        model = type(model)(model.config).to(model.device)
    model.requires_grad_(True)

    def batch_at(step: int) -> tuple[int, View]:
        seed = recipe.seed * 1_000_003 + step
        g = torch.Generator().manual_seed(seed)
        first = torch.randint(len(learnt) - recipe.context + 1, (recipe.batch, 1), generator=g)
        ids = learnt[first + torch.arange(recipe.context)].to(model.device)
        return seed, blanked(ids, _count(ids, share_at(step, recipe.rising, g)), g)

    def loss_of(live: Any, given: tuple[int, View]) -> Tensor:
        seed, view = given
        torch.manual_seed(seed)  # dropout is a function of the step, so that a run that goes on is the same run
        return infill_loss(live, view)

    with claimed(work, asdict(recipe) | own):
        before = held_out(model, windows)
        options = LoopOptions(
            recipe.steps, recipe.learning_rate, warmup=min(recipe.rising, recipe.steps // 10), bf16=False
        )
        fit(model, batch_at, loss_of, options, work / "model", say)
        facts = {
            "target": name,
            "parameters": sum(p.numel() for p in model.parameters()),
            "held_out": {"nats a blank": held_out(model, windows), "before": before},
            "recipe": asdict(recipe),
        }

        def write(side: Path) -> None:
            model.save_pretrained(side)
            tokenizer.save_pretrained(side)
            (side / "training.json").write_text(json.dumps(facts, indent=2) + "\n")

        save_sealed(folder, write)
    return facts


def tokens_of(files: Sequence[Path], tokenizer: PreTrainedTokenizerBase) -> Tensor:
    """The tokens `[unit]` of the texts of files, `{"text": "…"}` a line, one text behind the other; refuses a tokenizer
    of another model.
    """
    if tokenizer.mask_token_id != MASK:
        raise ValueError(
            f"the tokenizer's mask token has the id {tokenizer.mask_token_id}, and that of XLNet is {MASK}"
        )
    found = list[int]()
    for file in files:
        for number, line in numbered_json_lines(file, MOST):
            text = line.get("text")
            if not isinstance(text, str):
                raise ValueError(f'line {number} of {shown(file)} is not {{"text": "…"}}')
            found += [token for token in tokenizer(text, add_special_tokens=False)["input_ids"] if token != MASK]
    return torch.tensor(found, dtype=torch.int64)


def _count(ids: Tensor, share: float) -> int:
    """Blanks of a sequence: so large a share of it, one at least, and one token at least is known."""
    return min(max(1, int(share * ids.shape[1])), ids.shape[1] - 1)
