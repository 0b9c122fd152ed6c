"""Recipe `text`: a byte-level BPE tokenizer, a small Llama target, and a drafter distilled from it.

Four stages, each of which resumes where it stopped: tokenizer, target, target on sequences of full length, drafter. The
finished models are written to `<out>/text-14m` and `<out>/text-1m`, in half precision, only when their stages are
complete.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from mmspec.files import save_sealed
from mmspec.training.loop import LoopOptions, fit
from mmspec.training.work import claimed, damaged, digest
from tools.train.text import corpus as corpora
from tools.train.text.language import (
    LanguageRecipe,
    TrainingText,
    config_arguments,
    distillation_loss,
    facts_of,
    next_token_loss,
    ship,
)

END, PAD = "<|endoftext|>", "<|pad|>"
TARGET = dict(
    hidden_size=384, intermediate_size=1024, num_hidden_layers=8, num_attention_heads=6, num_key_value_heads=2
)
DRAFTER = dict(
    hidden_size=128, intermediate_size=384, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2
)
HIDDEN = "model.layers."
"""Where the matrices are that Muon updates."""


@dataclass(frozen=True)
class TextRecipe(LanguageRecipe):
    """Sizes and lengths of the recipe; `steps` are the target's."""

    vocab: int = 4096  # the number of tokens of the byte-level BPE
    # Further steps of the target: by Muon, on sequences of full length, with a learning rate that rises again (arXiv
    # 1608.03983).
    whole_steps: int = 450
    drafter_steps: int = 900  # optimiser steps of the drafter


def train(
    out: Path,
    work: Path,
    prose_files: list[Path],
    recipe: TextRecipe = TextRecipe(),
    device: str = "cpu",
    say: Callable[[str], None] = print,
) -> None:
    """Run the recipe, or the rest of it.

    Args:
        out: Folder that receives the finished models.
        work: Folder for checkpoints; delete it to start anew.
        prose_files: Plain text beside the standard library.
        recipe: Sizes and lengths.
        device: Where to train.
        say: Receives lines of progress.

    Raises:
        ValueError: There is no such prose; `work` is another run's, or of another recipe; or training cannot go on.
    """
    corpus = corpora.load(prose_files)
    with claimed(work, asdict(recipe) | {"data": digest(corpus.documents)}):
        tokenizer = _tokenizer(work / "tokenizer", corpus, recipe)
        text = TrainingText(tokenizer, corpus, recipe, device)
        say(str(text))
        target = _model(TARGET, recipe, tokenizer).to(device)
        batch_at = partial(text.batch_at, steps=recipe.steps)
        fit(target, batch_at, next_token_loss, LoopOptions(recipe.steps, 1.5e-3), work / "target", say)
        whole = LoopOptions(recipe.whole_steps, 1.5e-3, warmup=30, hidden=HIDDEN)
        fit(target, lambda step: batch_at(recipe.steps + step), next_token_loss, whole, work / "target-whole", say)
        facts = facts_of(target, tokenizer, corpus, recipe)
        ship(target, tokenizer, out / "text-14m", facts, say, partial(corpora.write_held_out, corpus=corpus))

        loss = distillation_loss(target.requires_grad_(False))
        drafter = _model(DRAFTER, replace(recipe, seed=recipe.seed + 1), tokenizer).to(device)
        batch_at = partial(text.batch_at, steps=recipe.drafter_steps)
        options = LoopOptions(recipe.drafter_steps, 4e-3, hidden=HIDDEN)
        fit(drafter, batch_at, loss, options, work / "drafter", say)
        facts = facts_of(drafter, tokenizer, corpus, recipe)
        ship(drafter, tokenizer, out / "text-1m", facts, say)


def _tokenizer(folder: Path, corpus: corpora.Corpus, recipe: TextRecipe) -> PreTrainedTokenizerFast:
    """The tokenizer in `folder`, trained if there is none yet."""
    if not (folder / "tokenizer.json").exists():
        bpe = Tokenizer(models.BPE())
        bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        bpe.decoder = decoders.ByteLevel()
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        trainer = trainers.BpeTrainer(
            vocab_size=recipe.vocab, special_tokens=[END, PAD], initial_alphabet=alphabet, show_progress=False
        )
        bpe.train_from_iterator([*corpus.code, *corpus.prose], trainer)
        wrapped = PreTrainedTokenizerFast(
            tokenizer_object=bpe,
            bos_token=END,
            eos_token=END,
            pad_token=PAD,
            model_max_length=recipe.context,
            padding_side="left",  # an argument: an attribute set later is not saved
        )
        save_sealed(folder, wrapped.save_pretrained)
    with damaged(folder):
        return PreTrainedTokenizerFast.from_pretrained(folder)


def _model(sizes: dict[str, int], recipe: TextRecipe, tokenizer: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    """A Llama of these sizes before training."""
    torch.manual_seed(recipe.seed)
    return LlamaForCausalLM(LlamaConfig(**config_arguments(tokenizer, recipe.context), **sizes))
