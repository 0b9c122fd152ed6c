"""Training of language models: token streams, batches, losses, held-out loss, and the folder of the finished model."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from mmspec.files import save_sealed
from mmspec.training.losses import DraftLoss, draft_loss, next_token
from tools.train.text.corpus import HELD_OUT_MODULES, HELD_OUT_PROSE, Corpus

Loss = Callable[[nn.Module, Tensor], Tensor]
"""The scalar loss of a model on ids `[sequences, length]`."""


@dataclass(frozen=True)
class LanguageRecipe:
    """Lengths that recipes of language models share."""

    context: int = 1024  # the longest sequence, in tokens
    # Full-length sequences per step; in the first three quarters of the steps, twice as many of half length
    batch: int = 4
    steps: int = 2100  # optimiser steps
    prose_share: float = 0.15  # the expected share of training sequences cut from prose
    seed: int = 0  # the seed of initial weights and of the order of sequences


class TrainingText:
    """The training documents of a corpus as tokens, and the batches cut from them."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, corpus: Corpus, recipe: LanguageRecipe, device: str) -> None:
        self.recipe = recipe
        self.code, self.prose = (stream(tokenizer, texts).to(device) for texts in (corpus.code, corpus.prose))

    def __str__(self) -> str:
        return f"training on {len(self.code):,} tokens of code and {len(self.prose):,} of prose"

    def batch_at(self, step: int, steps: int) -> Tensor:
        """The batch of a step, `[sequences, length]`: a function of the step alone.

        Args:
            step: The step.
            steps: All steps of the stage. Batches of the first three quarters have twice as many sequences of half
                the length: as many tokens, of more places.
        """
        rows, length, g = self.recipe.batch, self.recipe.context, torch.Generator()
        g.manual_seed(self.recipe.seed * 1_000_003 + step)
        if step < 0.75 * steps:
            rows, length = 2 * rows, length // 2
        sequences = []
        for _ in range(rows):
            source = self.prose if torch.rand((), generator=g) < self.recipe.prose_share else self.code
            start = int(torch.randint(len(source) - length, (), generator=g))
            sequences.append(source[start : start + length])
        return torch.stack(sequences)


def stream(tokenizer: PreTrainedTokenizerBase, documents: Sequence[str]) -> Tensor:
    """All documents as one row of ids, each opened by the end-of-text token."""
    end = tokenizer.eos_token_id
    rows = tokenizer(list(documents), add_special_tokens=False, verbose=False)["input_ids"]
    return torch.tensor([i for row in rows for i in (end, *row)])


def config_arguments(tokenizer: PreTrainedTokenizerBase, context: int) -> dict[str, Any]:
    """The arguments that configs of all shipped language models have in common."""
    return dict(
        vocab_size=len(tokenizer),
        max_position_embeddings=context,
        tie_word_embeddings=True,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )


def next_token_loss(model: nn.Module, ids: Tensor) -> Tensor:
    """The next-token loss of a model on ids `[sequences, length]`, in nats per token."""
    return next_token(model(ids, use_cache=False).logits, ids)


def distillation_loss(teacher: nn.Module, hard: float = 0.1) -> Loss:
    """The loss of a student of `teacher`: KL(teacher ‖ student), mixed with the next-token loss.

    A draft model should have the teacher's whole distribution: the acceptance rate of exact rules is 1 − TV, not the
    rate at which the likeliest tokens agree.

    Args:
        teacher: The teacher; no gradient flows into it.
        hard: The share of the next-token loss, in [0, 1].
    """
    kind = DraftLoss("kl", hard=hard)

    def loss(model: nn.Module, ids: Tensor) -> Tensor:
        with torch.no_grad():
            p = teacher(ids, use_cache=False).logits[:, :-1].float().softmax(-1)
        logits, units = model(ids, use_cache=False).logits[:, :-1], ids[:, 1:]
        return draft_loss(logits, p, torch.ones_like(units, dtype=torch.bool), loss=kind, units=units)

    return loss


@torch.no_grad()
def facts_of(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, corpus: Corpus, recipe: LanguageRecipe
) -> dict[str, Any]:
    """The facts for the model card: parameters, recipe, held-out loss in nats per token.

    Args:
        model: The trained model.
        tokenizer: The model's tokenizer.
        corpus: Its held-out documents are read, in windows of the recipe's context.
        recipe: The recipe.
    """
    model.eval()
    losses = {}
    for name, documents in (("code", corpus.held_out_code), ("prose", corpus.held_out_prose)):
        ids = stream(tokenizer, documents)
        windows = ids[: len(ids) // recipe.context * recipe.context].view(-1, 1, recipe.context).to(model.device)
        losses[name] = round(sum(float(next_token(model(one).logits, one)) for one in windows) / len(windows), 4)
    return {
        "parameters": sum(p.numel() for p in model.parameters()),
        "held_out_nats_per_token": losses,
        "held_out_modules": list(HELD_OUT_MODULES),
        "held_out_prose_share": HELD_OUT_PROSE,
        "recipe": asdict(recipe),
    }


def ship(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    folder: Path,
    facts: Mapping[str, Any],
    say: Callable[[str], None],
    also: Callable[[Path], None] = lambda folder: None,
) -> None:
    """Write the finished model in half precision, whole or not at all; the live model stays float32.

    Args:
        model: The trained model.
        tokenizer: The model's tokenizer.
        folder: The folder of the finished model; replaced if it exists.
        facts: Written beside the weights as `training.json`.
        say: Receives a line of text.
        also: Writes further files into the folder.
    """
    half = type(model)(model.config).half()
    half.load_state_dict(model.state_dict())

    def write(side: Path) -> None:
        half.save_pretrained(side)
        tokenizer.save_pretrained(side)
        also(side)
        (side / "training.json").write_text(json.dumps(facts, indent=2) + "\n")

    save_sealed(folder, write)
    losses = facts["held_out_nats_per_token"]
    say(f"{folder.name}: {facts['parameters']:,} parameters, held-out nats per token {losses}")
