"""`mmspec train text`: a byte-level BPE tokenizer, a small Llama target, and a drafter distilled from it.

Three stages, each of which resumes where it stopped: tokenizer, target, drafter. What is shipped lands in
`<out>/text-14m` and `<out>/text-1m`, in half precision, only when a stage is complete.
"""

import json
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from mmspec.training.loop import LoopOptions, fit
from mmspec.training.losses import distillation, next_token
from mmspec_text import corpus as texts
from mmspec_text import held_out as pieces

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
    """
    corpus = texts.load(prose_files)
    work.mkdir(parents=True, exist_ok=True)
    tokenizer = _tokenizer(work / "tokenizer", corpus, recipe)
    streams = [_stream(tokenizer, documents).to(device) for documents in (corpus.code, corpus.prose)]
    say(f"training on {len(streams[0]):,} tokens of code and {len(streams[1]):,} of prose")
    held_out = {"code": _stream(tokenizer, corpus.held_out_code), "prose": _stream(tokenizer, corpus.held_out_prose)}

    def batch_at(step: int, steps: int = recipe.steps) -> Tensor:
        return _batch(streams, recipe, step, short=step < 0.75 * steps)

    def next_token_loss(model: nn.Module, ids: Tensor) -> Tensor:
        return next_token(model(ids).logits, ids)

    target = _model(TARGET, recipe, tokenizer).to(device)
    fit(target, batch_at, next_token_loss, LoopOptions(recipe.steps, 1.5e-3), work / "target", say)
    facts = _facts(target, recipe, held_out, device)
    _ship(target, tokenizer, out / "text-14m", facts, say, also=lambda folder: pieces.write(folder, corpus))

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
    _ship(drafter, tokenizer, out / "text-1m", _facts(drafter, recipe, held_out, device), say)


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
        wrapped.save_pretrained(folder)
    return PreTrainedTokenizerFast.from_pretrained(folder)


def _stream(tokenizer: PreTrainedTokenizerFast, documents: list[str]) -> Tensor:
    """All documents as one row of ids, each opened by the end-of-text token."""
    end = tokenizer.eos_token_id
    rows = tokenizer(documents, add_special_tokens=False, verbose=False)["input_ids"]
    return torch.tensor([i for row in rows for i in (end, *row)])


def _batch(streams: list[Tensor], recipe: TextRecipe, step: int, short: bool) -> Tensor:
    """Windows cut at random places; the share of prose is drawn sequence by sequence. `[sequences, length]`."""
    g = torch.Generator().manual_seed(recipe.seed * 1_000_003 + step)
    rows, length = [], recipe.context // 2 if short else recipe.context
    for _ in range(recipe.batch * 2 if short else recipe.batch):
        stream = streams[int(torch.rand((), generator=g) < recipe.prose_share)]
        start = int(torch.randint(len(stream) - length, (), generator=g))
        rows.append(stream[start : start + length])
    return torch.stack(rows)


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


@torch.no_grad()
def _facts(model: LlamaForCausalLM, recipe: TextRecipe, held_out: dict[str, Tensor], device: str) -> dict[str, Any]:
    """What the card says: parameters, recipe, held-out loss in nats per token."""
    model.eval()
    losses = {}
    for name, stream in held_out.items():
        windows = stream[: len(stream) // recipe.context * recipe.context].view(-1, recipe.context)
        each = [float(next_token(model(w[None].to(device)).logits, w[None].to(device))) for w in windows]
        losses[name] = round(sum(each) / len(each), 4)
    return {
        "parameters": sum(p.numel() for p in model.parameters()),
        "held_out_nats_per_token": losses,
        "held_out_modules": list(texts.HELD_OUT_MODULES),
        "held_out_prose_share": texts.HELD_OUT_PROSE,
        "recipe": asdict(recipe),
    }


def _ship(
    model: LlamaForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    folder: Path,
    facts: dict[str, Any],
    say: Callable[[str], None],
    also: Callable[[Path], None] = lambda folder: None,
) -> None:
    """Write the model in half precision, whole or not at all; the live model stays float32."""
    side = folder.with_name(folder.name + ".part")
    shutil.rmtree(side, ignore_errors=True)
    half = LlamaForCausalLM(model.config).half()
    half.load_state_dict(model.state_dict())
    half.save_pretrained(side)
    tokenizer.save_pretrained(side)
    also(side)
    (side / "training.json").write_text(json.dumps(facts, indent=2) + "\n")
    shutil.rmtree(folder, ignore_errors=True)
    side.rename(folder)
    say(
        f"{folder.name}: {facts['parameters']:,} parameters, held-out nats per token {facts['held_out_nats_per_token']}"
    )
