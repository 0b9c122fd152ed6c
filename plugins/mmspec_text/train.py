"""`mmspec train text`: a byte-level BPE tokenizer, a small Llama target, and a drafter distilled from it.

Three stages, each of which resumes where it stopped: tokenizer, target, drafter. What is shipped lands in
`<out>/text-14m` and `<out>/text-1m`, in half precision, only when a stage is complete.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from mmspec.files import save_whole
from mmspec.kits.text import corpus as texts
from mmspec.kits.text import held_out as pieces
from mmspec.kits.text.training import facts_of, held_out_streams, ship, stream, windows
from mmspec.training.loop import LoopOptions, fit
from mmspec.training.losses import distillation, next_token
from mmspec.training.work import claimed, damaged, digest

END, PAD = "<|endoftext|>", "<|pad|>"
TARGET = dict(
    hidden_size=384, intermediate_size=1024, num_hidden_layers=8, num_attention_heads=6, num_key_value_heads=2
)
DRAFTER = dict(
    hidden_size=128, intermediate_size=384, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2
)


@dataclass(frozen=True)
class TextRecipe:
    """Sizes and lengths of the text recipe.

    Attributes:
        vocab: Tokens of the byte-level BPE.
        context: Longest sequence, in tokens.
        batch: Full-length sequences a step; for the first three quarters of the steps, twice as many of half length.
        steps: Optimiser steps of the target.
        drafter_steps: Optimiser steps of the drafter.
        prose_share: Share of training sequences cut from prose.
        seed: Of initial weights and of the order of sequences.
    """

    vocab: int = 4096
    context: int = 1024
    batch: int = 4
    steps: int = 2100
    drafter_steps: int = 900
    prose_share: float = 0.15
    seed: int = 0


def train(
    out: Path,
    work: Path,
    prose_files: list[Path],
    recipe: TextRecipe = TextRecipe(),
    device: str = "cpu",
    say: Callable[[str], None] = print,
) -> None:
    """Run the whole recipe, or what is left of it.

    Args:
        out: Folder that receives the finished models.
        work: Folder for checkpoints; delete it to start anew.
        prose_files: Plain text beside the standard library.
        recipe: Sizes and lengths.
        device: Where to train.
        say: Where progress lines go.

    Raises:
        ValueError: There is no such prose; `work` is another run's, or of another recipe; or training cannot go on.
    """
    corpus = texts.load(prose_files)
    with claimed(work, asdict(recipe) | {"data": digest(corpus.documents)}):
        _train(corpus, recipe, out, work, device, say)


def _train(
    corpus: texts.Corpus, recipe: TextRecipe, out: Path, work: Path, device: str, say: Callable[[str], None]
) -> None:
    tokenizer = _tokenizer(work / "tokenizer", corpus, recipe)
    streams = [stream(tokenizer, documents).to(device) for documents in (corpus.code, corpus.prose)]
    say(f"training on {len(streams[0]):,} tokens of code and {len(streams[1]):,} of prose")
    held_out = held_out_streams(tokenizer, corpus)

    def batch_at(step: int, steps: int = recipe.steps) -> Tensor:
        return _batch(streams, recipe, step, short=step < 0.75 * steps)

    def next_token_loss(model: nn.Module, ids: Tensor) -> Tensor:
        return next_token(model(ids).logits, ids)

    target = _model(TARGET, recipe, tokenizer).to(device)
    fit(target, batch_at, next_token_loss, LoopOptions(recipe.steps, 1.5e-3), work / "target", say)
    facts = facts_of(target, held_out, recipe.context, asdict(recipe))
    ship(target, tokenizer, out / "text-14m", facts, say, also=lambda folder: pieces.write(folder, corpus))

    target.requires_grad_(False)

    def distillation_loss(model: nn.Module, ids: Tensor) -> Tensor:
        with torch.no_grad():
            teacher = target(ids).logits
        return distillation(model(ids).logits, teacher, ids)

    drafter = _model(DRAFTER, replace(recipe, seed=recipe.seed + 1), tokenizer).to(device)
    fit(
        drafter,
        partial(batch_at, steps=recipe.drafter_steps),
        distillation_loss,
        LoopOptions(recipe.drafter_steps, 4e-3),
        work / "drafter",
        say,
    )
    ship(drafter, tokenizer, out / "text-1m", facts_of(drafter, held_out, recipe.context, asdict(recipe)), say)


def _tokenizer(folder: Path, corpus: texts.Corpus, recipe: TextRecipe) -> PreTrainedTokenizerFast:
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
        save_whole(folder, wrapped.save_pretrained)
    with damaged(folder):
        return PreTrainedTokenizerFast.from_pretrained(folder)


def _batch(streams: list[Tensor], recipe: TextRecipe, step: int, short: bool) -> Tensor:
    """The windows of a step, `[sequences, length]`: a function of the step alone."""
    return windows(
        *streams,
        rows=recipe.batch,
        length=recipe.context,
        prose_share=recipe.prose_share,
        seed=recipe.seed * 1_000_003 + step,
        short=short,
    )


def _model(sizes: dict[str, int], recipe: TextRecipe, tokenizer: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    torch.manual_seed(recipe.seed)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=recipe.vocab,
            max_position_embeddings=recipe.context,
            tie_word_embeddings=True,
            bos_token_id=tokenizer.bos_token_id,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
            **sizes,
        )
    )
