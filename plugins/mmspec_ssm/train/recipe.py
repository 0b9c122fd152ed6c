"""`mmspec train ssm`: a small Bamba (Mamba-2 layers and one of attention), distilled from the shipped text target.

It learns the same text with the same tokenizer, and from the same teacher as the shipped drafter, which so drafts for
it, too. Passes are transformers' own, its scan in chunks.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import BambaConfig, BambaForCausalLM, PreTrainedTokenizerBase

from mmspec.hosts.loading import load_model, load_tokenizer
from mmspec.kits.text.corpus import Corpus
from mmspec.kits.text.training import stream, windows
from mmspec.training.loop import LoopOptions, fit
from mmspec.training.losses import distillation, next_token

TEACHER = "mmspec/text-14m"
"""Its tokenizer is the model's, too."""
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
"""Steps Δ of the first and of the last head before anything is learned, as powers of ten."""


@dataclass(frozen=True)
class SsmRecipe:
    """Lengths of the recipe.

    Attributes:
        context: Longest sequence, in tokens.
        batch: Full-length sequences a step; for the first three quarters of the steps, twice as many of half length.
        steps: Optimiser steps.
        prose_share: Share of training sequences cut from prose.
        hard: Share of the next-token loss beside distillation; 1 does without the teacher.
        seed: Of initial weights and of the order of sequences.
    """

    context: int = 1024
    batch: int = 4
    steps: int = 1300
    prose_share: float = 0.15
    hard: float = 0.1
    seed: int = 0


def train(
    corpus: Corpus, recipe: SsmRecipe, work: Path, device: str, say: Callable[[str], None]
) -> tuple[BambaForCausalLM, PreTrainedTokenizerBase]:
    """The model and its tokenizer, resuming where it stopped.

    Args:
        corpus: Text.
        recipe: Lengths.
        work: Folder for checkpoints; delete it to start anew.
        device: Where to train.
        say: Where progress lines go.
    """
    tokenizer = load_tokenizer(TEACHER)
    streams = [stream(tokenizer, documents).to(device) for documents in (corpus.code, corpus.prose)]
    say(f"training on {len(streams[0]):,} tokens of code and {len(streams[1]):,} of prose")
    model = made_model(recipe, tokenizer).to(device)

    def batch_at(step: int) -> Tensor:
        return windows(
            *streams,
            rows=recipe.batch,
            length=recipe.context,
            prose_share=recipe.prose_share,
            seed=recipe.seed * 1_000_003 + step,
            short=step < 0.75 * recipe.steps,
        )

    fit(model, batch_at, _loss(recipe, device), LoopOptions(recipe.steps, 2e-3), work / "model", say)
    return model, tokenizer


def made_model(recipe: SsmRecipe, tokenizer: PreTrainedTokenizerBase) -> BambaForCausalLM:
    """The model before training.

    transformers begins a mixer with the numbers that a checkpoint will replace; these are Mamba-2's own
    (arXiv 2405.21060): convolutions as torch begins them, and steps Δ spread so that heads remember from a token or two
    to about a thousand.
    """
    torch.manual_seed(recipe.seed)
    model = BambaForCausalLM(
        BambaConfig(
            vocab_size=len(tokenizer),
            max_position_embeddings=recipe.context,
            tie_word_embeddings=True,
            bos_token_id=tokenizer.bos_token_id,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
            **SIZES,
        )
    )
    for layer in model.model.layers:
        if hasattr(layer, "mamba"):
            layer.mamba.conv1d.reset_parameters()
            steps = torch.logspace(*DECADES, layer.mamba.num_heads)
            layer.mamba.dt_bias.data.copy_(steps.expm1().log())  # softplus of it is Δ
    return model


def _loss(recipe: SsmRecipe, device: str) -> Callable[[nn.Module, Tensor], Tensor]:
    """Scalar loss of a batch of ids `[sequences, length]`. During training no states are kept."""
    if recipe.hard == 1:
        return lambda model, ids: next_token(model(ids, use_cache=False).logits, ids)
    teacher = load_model(TEACHER, device).requires_grad_(False)

    def distilled(model: nn.Module, ids: Tensor) -> Tensor:
        with torch.no_grad():
            taught = teacher(ids, use_cache=False).logits
        return distillation(model(ids, use_cache=False).logits, taught, ids, recipe.hard)

    return distilled
