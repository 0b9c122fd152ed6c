"""Recipe `ssm`: a small Bamba (Mamba-2 layers and one of attention), distilled from the shipped text target.

The model learns the same text with the same tokenizer, from the same teacher as the shipped drafter, which therefore
drafts for it, too. Passes are transformers' own, with a scan in chunks.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers import BambaConfig, BambaForCausalLM, PreTrainedTokenizerBase

from mmspec.hosts.loading import load_model, load_tokenizer
from mmspec.training.loop import LoopOptions, fit
from mmspec.training.work import claimed, digest
from tools.train.text import corpus as corpora
from tools.train.text.language import (
    LanguageRecipe,
    Loss,
    TrainingText,
    config_arguments,
    distillation_loss,
    facts_of,
    next_token_loss,
    ship,
)

NAME = "ssm-5m"
TEACHER = "mmspec/text-14m"
"""The teacher, whose tokenizer is the model's, too."""
SIZES: dict[str, Any] = dict(
    hidden_size=256,
    intermediate_size=512,
    num_hidden_layers=6,
    attn_layer_indices=[3],
    num_attention_heads=4,
    num_key_value_heads=2,
    mamba_n_heads=8,
    mamba_d_head=64,
    mamba_d_state=64,
    mamba_chunk_size=64,
)
DECADES = (-3.0, -1.0)
"""The initial steps Δ of the first and of the last head, as powers of ten."""


@dataclass(frozen=True)
class SsmRecipe(LanguageRecipe):
    """Lengths of the recipe."""

    steps: int = 1300
    hard: float = 0.1  # the share of the next-token loss beside distillation; 1 does without the teacher


def train(
    out: Path,
    work: Path,
    prose_files: list[Path],
    recipe: SsmRecipe = SsmRecipe(),
    device: str = "cpu",
    say: Callable[[str], None] = print,
) -> None:
    """Run the recipe, or the rest of it, and write `<out>/ssm-5m` in half precision.

    Args:
        out: Folder that receives the finished model.
        work: Folder for checkpoints; delete it to start anew.
        prose_files: Plain text beside the standard library.
        recipe: Lengths.
        device: Where to train.
        say: Receives lines of progress.

    Raises:
        ValueError: There is no such prose; `work` is another run's, or of another recipe; or training cannot go on.
    """
    corpus = corpora.load(prose_files)
    with claimed(work, asdict(recipe) | {"data": digest(corpus.documents)}):
        tokenizer = load_tokenizer(TEACHER)
        text = TrainingText(tokenizer, corpus, recipe, device)
        say(str(text))
        model = initial_model(recipe, tokenizer).to(device)
        batch_at = partial(text.batch_at, steps=recipe.steps)
        fit(model, batch_at, loss_of(recipe, device), LoopOptions(recipe.steps, 2e-3), work / "model", say)
        facts = facts_of(model, tokenizer, corpus, recipe)
        ship(model, tokenizer, out / NAME, facts, say)


def initial_model(recipe: SsmRecipe, tokenizer: PreTrainedTokenizerBase) -> BambaForCausalLM:
    """The model before training.

    transformers initialises a mixer with placeholder numbers for a checkpoint; these are Mamba-2's own (arXiv
    2405.21060): convolutions as torch initialises them, and steps Δ spread so that the heads' memories last from one or
    two tokens to about a thousand.
    """
    torch.manual_seed(recipe.seed)
    model = BambaForCausalLM(BambaConfig(**config_arguments(tokenizer, recipe.context), **SIZES))
    for layer in model.model.layers:
        if layer.block_type == "linear_attention":
            layer.mamba.conv1d.reset_parameters()
            steps = torch.logspace(*DECADES, layer.mamba.num_heads)
            layer.mamba.dt_bias.data.copy_(steps.expm1().log())  # softplus of it is Δ
    return model


def loss_of(recipe: SsmRecipe, device: str) -> Loss:
    """The loss of the recipe; the teacher is loaded only if it is needed."""
    if recipe.hard == 1:
        return next_token_loss
    return distillation_loss(load_model(TEACHER, device).requires_grad_(False), recipe.hard)
