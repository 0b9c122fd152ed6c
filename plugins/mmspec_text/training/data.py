"""Reading a user's texts for training, from a file of JSON lines, and refusing those that would train nothing.

A line is `{"text": "…"}`; or `{"messages": […]}`, a conversation, which the target's chat template puts into the form
in which it is served; or `{"ids": […]}`, if it was tokenised by the target's tokenizer. They follow one another in one
stream. Texts and ids are opened by the token that begins or ends texts; a template writes its own.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from mmspec.registry.printable import shown
from mmspec.training.losses import next_token
from mmspec.untrusted import read_json_lines
from mmspec_text.training.recipe import DrafterRecipe
from mmspec_text.training.texts import CONTINUED, GIVEN, Stream, Texts

MOST = 1 << 30
"""Most bytes of a file of texts."""
HELD_OUT = 0.05
"""Share of a stream, at its end, that is held out."""
MARGIN = 1.0
"""Nats per token above those of a uniform guess from which a text is refused."""
NO_PROMPTS = torch.zeros(0, 0, dtype=torch.int64)
"""The target writes nothing."""


@dataclass(frozen=True)
class Data:
    """What a drafter is trained on.

    Attributes:
        streams: Texts and their shares; none if the target writes all of it.
        held: Windows of held-out text, `[window, unit]`, by name; if there are none, of what the target wrote.
        prompts: `[row, unit]` int64: what the target continues; no rows if it writes nothing.
    """

    streams: Sequence[Stream]
    held: Mapping[str, Tensor]
    prompts: Tensor


def read_data(
    files: Sequence[Path], own: int, model: Any, tokenizer: PreTrainedTokenizerBase, recipe: DrafterRecipe
) -> Data:
    """What a user gave.

    Args:
        files: Files of texts.
        own: Units that the target writes, about; 0: none.
        model: The target.
        tokenizer: Its tokenizer.
        recipe: Lengths.

    Raises:
        ValueError: There is nothing to train on in a file, or the target knows no such text.
    """
    vocab = model.config.get_text_config(decoder=True).vocab_size
    streams, held = [], {}
    for file in files:
        units, windows = halves(read_stream(file, tokenizer, vocab), recipe.context, shown(file))
        refuse_foreign(lambda ids: model(ids.to(model.device), use_cache=False).logits.cpu(), windows[0], vocab)
        streams.append(Stream(units, float(len(units))))
        held[file.stem] = windows
    rows = -(-own // (GIVEN + CONTINUED))
    if not streams and rows:
        return Data(streams, held, torch.full((rows, 1), _opening(tokenizer)))
    prompts = Texts(streams, rows, min(GIVEN, recipe.context), recipe.seed + 1).batch_at(0) if rows else NO_PROMPTS
    return Data(streams, held, prompts)


def read_stream(path: Path, tokenizer: PreTrainedTokenizerBase, vocab: int) -> Tensor:
    """The texts of a file as one row of units, `[unit]` int64.

    Args:
        path: The file.
        tokenizer: The target's.
        vocab: Number of the target's ids.

    Raises:
        ValueError: The file cannot be read, is empty, or a line holds no text, or ids of another tokenizer.
    """
    lines = read_json_lines(path, MOST)
    if not lines:
        raise ValueError(f'{shown(path)} is empty: every line holds a text, {{"text": "…"}}')
    first = [] if tokenizer.bos_token_id is None and tokenizer.eos_token_id is None else [_opening(tokenizer)]
    units: list[int] = []
    for number, line in enumerate(lines, 1):
        where = f"line {number} of {shown(path)}"
        if isinstance(line.get("messages"), list):
            units += _conversation(line["messages"], tokenizer, where)
        else:
            units += first + _ids(line, tokenizer, vocab, where)
    return torch.tensor(units, dtype=torch.int64)


def _conversation(messages: list[Any], tokenizer: PreTrainedTokenizerBase, where: str) -> list[int]:
    """The ids of a conversation."""
    if tokenizer.chat_template is None:
        raise ValueError(f"{where} has messages, and the target's tokenizer has no chat template; give texts")
    try:
        return list(tokenizer.apply_chat_template(messages, tokenize=True, return_dict=False))
    except Exception as error:  # templates raise whatever their author chose
        raise ValueError(f"{where}: the target's chat template does not take these messages: {shown(error)}") from error


def _opening(tokenizer: PreTrainedTokenizerBase) -> int:
    """The token in front of a text.

    Raises:
        ValueError: The tokenizer has none.
    """
    for token in (tokenizer.bos_token_id, tokenizer.eos_token_id):
        if token is not None:
            return int(token)
    raise ValueError("the target's tokenizer has no token that begins a text, so it needs texts to go on from: --data")


def _ids(line: Mapping[str, Any], tokenizer: PreTrainedTokenizerBase, vocab: int, where: str) -> list[int]:
    """The ids of one line."""
    if isinstance(line.get("text"), str):
        return list(tokenizer(line["text"], add_special_tokens=False, verbose=False)["input_ids"])
    ids = line.get("ids")
    if not isinstance(ids, list) or not all(type(one) is int for one in ids):
        there = ", ".join(map(shown, list(line)[:4])) or "nothing"
        raise ValueError(
            f'{where} has no "text" (a string), no "messages" (a list) and no "ids" (numbers), but {there}'
        )
    foreign = [one for one in ids if not 0 <= one < vocab]
    if foreign:
        raise ValueError(f"{where} has the id {foreign[0]}, and the target has {vocab}: ids of another tokenizer")
    return ids


def halves(units: Tensor, length: int, where: str) -> tuple[Tensor, Tensor]:
    """A stream's training part, and windows `[window, length]` of its held-out end.

    Raises:
        ValueError: It is too short.
    """
    held = max(1, int(HELD_OUT * len(units)) // length) * length
    if len(units) - held < length:
        raise ValueError(
            f"{where} has {len(units):,} tokens; training cuts sequences of {length} (context), and holds one out, so "
            f"that it takes {2 * length:,} and more"
        )
    return units[:-held], units[-held:].view(-1, length)


@torch.no_grad()
def refuse_foreign(logits_of: Callable[[Tensor], Tensor], window: Tensor, vocab: int) -> None:
    """Refuse a text that the target finds less likely than noise, as text of another tokenizer's ids is.

    Args:
        logits_of: The target's logits of ids `[1, unit]`.
        window: `[unit]` int64: a piece of the text.
        vocab: Number of the target's ids.

    Raises:
        ValueError: A uniform guess would be much better than the target.
    """
    nats = float(next_token(logits_of(window[None]), window[None]))
    if not nats < math.log(vocab) + MARGIN:
        raise ValueError(
            f"the target gives this text {nats:.1f} nats per token, and a uniform guess over its {vocab} ids has "
            f"{math.log(vocab):.1f}: these are ids of another tokenizer, or no text that this target knows"
        )
