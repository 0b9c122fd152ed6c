"""What recipes of language models share: tokens, windows cut from them, held-out loss, the folder that ships."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from mmspec.files import save_whole
from mmspec.kits.text.corpus import HELD_OUT_MODULES, HELD_OUT_PROSE, Corpus
from mmspec.training.losses import next_token


def stream(tokenizer: PreTrainedTokenizerBase, documents: Sequence[str]) -> Tensor:
    """All documents as one row of ids, each opened by the end-of-text token."""
    end = tokenizer.eos_token_id
    rows = tokenizer(list(documents), add_special_tokens=False, verbose=False)["input_ids"]
    return torch.tensor([i for row in rows for i in (end, *row)])


def held_out_streams(tokenizer: PreTrainedTokenizerBase, corpus: Corpus) -> dict[str, Tensor]:
    """What is held out, by kind of text."""
    return {"code": stream(tokenizer, corpus.held_out_code), "prose": stream(tokenizer, corpus.held_out_prose)}


def windows(
    code: Tensor, prose: Tensor, *, rows: int, length: int, prose_share: float, seed: int, short: bool = False
) -> Tensor:
    """Windows `[rows, length]` cut at random places; whether one is of prose is drawn window by window.

    Args:
        code: A stream.
        prose: Another.
        rows: Windows.
        length: Tokens of each.
        prose_share: Expected share of windows of prose.
        seed: Of the draws.
        short: Twice as many of half the length: as many tokens, of more places.
    """
    g = torch.Generator().manual_seed(seed)
    rows, length = (2 * rows, length // 2) if short else (rows, length)
    cut = []
    for _ in range(rows):
        source = prose if torch.rand((), generator=g) < prose_share else code
        start = int(torch.randint(len(source) - length, (), generator=g))
        cut.append(source[start : start + length])
    return torch.stack(cut)


@torch.no_grad()
def facts_of(
    model: PreTrainedModel, held_out: Mapping[str, Tensor], context: int, recipe: Mapping[str, Any]
) -> dict[str, Any]:
    """What the card says: parameters, recipe, held-out loss in nats per token.

    Args:
        model: Trained.
        held_out: Streams by kind of text; they are read in windows of `context` tokens.
        context: See there.
        recipe: Sizes and lengths.
    """
    model.eval()
    losses = {}
    for name, ids in held_out.items():
        cut = ids[: len(ids) // context * context].view(-1, 1, context).to(model.device)
        losses[name] = round(sum(float(next_token(model(one).logits, one)) for one in cut) / len(cut), 4)
    return {
        "parameters": sum(p.numel() for p in model.parameters()),
        "held_out_nats_per_token": losses,
        "held_out_modules": list(HELD_OUT_MODULES),
        "held_out_prose_share": HELD_OUT_PROSE,
        "recipe": dict(recipe),
    }


def ship(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    folder: Path,
    facts: Mapping[str, Any],
    say: Callable[[str], None],
    also: Callable[[Path], None] = lambda folder: None,
) -> None:
    """Write the model in half precision, whole or not at all; the live model stays float32.

    Args:
        model: Trained.
        tokenizer: Its.
        folder: Of the finished model; replaced if there is one.
        facts: Beside the weights.
        say: Where the last line goes.
        also: Writes more into the folder.
    """
    half = type(model)(model.config).half()
    half.load_state_dict(model.state_dict())

    def write(side: Path) -> None:
        half.save_pretrained(side)
        tokenizer.save_pretrained(side)
        also(side)
        (side / "training.json").write_text(json.dumps(facts, indent=2) + "\n")

    save_whole(folder, write)
    say(
        f"{folder.name}: {facts['parameters']:,} parameters, held-out nats per token {facts['held_out_nats_per_token']}"
    )
