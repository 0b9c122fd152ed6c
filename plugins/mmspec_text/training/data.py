"""Reading a user's texts for training, from files of JSON lines, and refusing those that would train nothing.

A line is `{"text": "…"}`; or `{"ids": […]}`, if it was tokenised by the target's tokenizer; or `{"messages": […]}`, a
conversation, of which the answers alone are learnt (`chats`). Texts and ids follow one another in one stream, each
opened by the token that begins or ends texts.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from mmspec.hosts.draft_models import own_target
from mmspec.registry.printable import shown
from mmspec.training.losses import next_token
from mmspec.untrusted import numbered_json_lines
from mmspec_text.training.chats import Chat
from mmspec_text.training.recipe import DrafterRecipe
from mmspec_text.training.texts import LEAST, Answer, Answers, Batch, Source, Stream, Texts, prompts_of
from mmspec_text.training.written import CONTINUED, GIVEN, ends

MOST = 1 << 30
"""Most bytes of a file of texts."""
HELD_OUT = 0.05
"""Share of a stream, at its end, that is held out."""
MARGIN = 1.0
"""So many nats per token above a uniform guess, a text is refused."""
NO_PROMPTS = torch.zeros(0, 0, dtype=torch.int64)
"""The target writes nothing."""


@dataclass(frozen=True)
class Data:
    """The data of a drafter's training."""

    sources: Sequence[Source]  # texts and answers; none if the target writes all of it
    held: Mapping[str, Batch]  # held-out sequences by name; if there are none, they are of what the target wrote
    # `[row, unit]` int64, with -1 before shorter ones: what the target continues; no rows if it writes nothing
    prompts: Tensor
    # What it writes there: more of a text; an answer to a question; or a question, and then its answer
    writes: Literal["text", "answers", "questions"] = "text"
    template: Mapping[str, Any] = field(default_factory=dict)  # values of the chat template's own variables


def read_data(
    files: Sequence[Path],
    own: int,
    model: Any,
    tokenizer: PreTrainedTokenizerBase,
    recipe: DrafterRecipe,
    template: Mapping[str, Any] | None = None,
) -> Data:
    """The data that a user gave, in `files` of texts and conversations; refuses what the target or its chat template
    cannot read.

    The target itself writes about `own` units: it answers the questions of the conversations; if there are none, it
    goes on from beginnings of the texts; if there are no files, it writes all of it, in its chat template if it has
    one. `template` are the values of the template's own variables, as they are in use: `{"enable_thinking": False}`.
    """
    chat = Chat(tokenizer, template or {})
    vocab = model.config.get_text_config(decoder=True).vocab_size

    def known(batch: Batch) -> Batch:
        first = batch.ids[0, : int(batch.counted[0].nonzero().max()) + 2]  # without padding
        refuse_foreign(lambda ids: model(ids.to(model.device), use_cache=False).logits.cpu(), first, vocab)
        return batch

    streams: list[Stream] = []
    chats: list[Answers] = []
    held: dict[str, Batch] = {}
    stems = [file.stem for file in files]
    for file in files:
        name = file.stem if stems.count(file.stem) == 1 else shown(file)
        units, talks = read_file(file, chat, vocab, ends(model))
        if len(units):
            units, windows = halves(units, recipe.context, shown(file))
            streams.append(Stream(units, float(len(units))))
            held[name] = known(Batch.whole(windows))
        if talks:
            answers, last = held_apart(talks, recipe.context, shown(file))
            chats.append(Answers(answers, float(sum(len(row.ids) for row in answers))))
            held[f"{name} (answers)" if len(units) else name] = known(last)
    rows = -(-own // (CONTINUED if chats else GIVEN + CONTINUED))
    if not rows:
        return Data([*streams, *chats], held, NO_PROMPTS, template=chat.variables)
    if chats:
        prompts = _asked(chats, rows, own_target(model).context, recipe.seed)
        return Data([*streams, *chats], held, prompts, "answers", chat.variables)
    if streams:
        beginnings = Texts(streams, rows, min(GIVEN, recipe.context), recipe.seed + 1).batch_at(0).ids
        return Data(streams, held, beginnings)
    if tokenizer.chat_template is not None:
        return Data([], {}, chat.opening().expand(rows, -1), "questions", chat.variables)
    return Data([], {}, torch.full((rows, 1), _opening(tokenizer, vocab)))


def read_file(path: Path, chat: Chat, vocab: int, end: Tensor) -> tuple[Tensor, list[list[Answer]]]:
    """The texts of a file as one row of units, `[unit]` int64; and of every conversation its answers.

    `end` are the ids that end an answer.
    """
    lines, tokenizer = numbered_json_lines(path, MOST), chat.tokenizer
    if not lines:
        raise ValueError(f'{shown(path)} is empty: every line holds a text, {{"text": "…"}}')
    first = [] if tokenizer.bos_token_id is None and tokenizer.eos_token_id is None else [_opening(tokenizer, vocab)]
    units: list[int] = []
    talks: list[list[Answer]] = []
    for number, line in lines:
        where = f"line {number} of {shown(path)}"
        if isinstance(line.get("messages"), list):
            talks.append(chat.answers_in(line, end, where))
            for answer in talks[-1]:
                _refuse_ids(answer.ids.tolist(), vocab, where)
        elif ids := _ids(line, tokenizer, vocab, where):
            units += first + ids
    if not units and not talks:
        raise ValueError(f"{shown(path)} has {len(lines)} texts, and all of them are empty")
    return torch.tensor(units, dtype=torch.int64), talks


def _asked(chats: Sequence[Answers], rows: int, reach: int | None, seed: int) -> Tensor:
    """The prompts that the target answers: beginnings of conversations that leave it at least half of its context."""
    asked = [row.ids[: row.given] for chat in chats for row in chat.rows if reach is None or 2 * row.given <= reach]
    if not asked:
        raise ValueError(f"no conversation leaves the target room for an answer: it reads {reach} tokens")
    order = torch.randperm(len(asked), generator=torch.Generator().manual_seed(seed + 1)).tolist()
    chosen = [asked[order[number % len(order)]] for number in range(rows)]
    return prompts_of(sorted(chosen, key=len))  # sorted, so that prompts of one batch have few places before them


def _opening(tokenizer: PreTrainedTokenizerBase, vocab: int) -> int:
    """The token in front of a text."""
    for token in (tokenizer.bos_token_id, tokenizer.eos_token_id):
        if token is not None:
            _refuse_ids([token], vocab, "the token that begins a text")
            return int(token)
    raise ValueError("the target's tokenizer has no token that begins a text, so it needs texts to go on from: --data")


def _ids(line: Mapping[str, Any], tokenizer: PreTrainedTokenizerBase, vocab: int, where: str) -> list[int]:
    ids: Any = line.get("ids")
    if isinstance(line.get("text"), str):
        ids = list(tokenizer(line["text"], add_special_tokens=False, verbose=False)["input_ids"])
    if not isinstance(ids, list) or not all(type(one) is int for one in ids):
        there = ", ".join(map(shown, list(line)[:4])) or "nothing"
        raise ValueError(
            f'{where} has no "text" (a string), no "messages" (a list) and no "ids" (numbers), but {there}'
        )
    _refuse_ids(ids, vocab, where)
    return ids


def _refuse_ids(ids: Sequence[int], vocab: int, where: str) -> None:
    foreign = [one for one in ids if not 0 <= one < vocab]
    if foreign:
        raise ValueError(f"{where} has the id {foreign[0]}, and the target has {vocab}: ids of another tokenizer")


def held_apart(talks: Sequence[Sequence[Answer]], length: int, where: str) -> tuple[list[Answer], Batch]:
    """The answers to train on, and the last conversations', at most `length` units each, which are held out."""
    held = max(1, int(HELD_OUT * len(talks)))
    if len(talks) - held < 1:
        raise ValueError(f"{where} has one conversation; training holds one out, so that it takes two and more")
    kept = [row for talk in talks[:-held] for row in talk]
    cuts = Answers([row for talk in talks[-held:] for row in talk], 1.0).last_pieces(length)
    return kept, Batch.padded(cuts, least=min(LEAST, length))


def halves(units: Tensor, length: int, where: str) -> tuple[Tensor, Tensor]:
    """A stream's training part, and windows `[window, length]` of its held-out end."""
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

    `logits_of` gives the target's logits of ids `[1, unit]`; `window` is a piece of the text, `[unit]` int64.
    """
    nats = float(next_token(logits_of(window[None]), window[None]))
    if not nats < math.log(vocab) + MARGIN:
        raise ValueError(
            f"the target gives this text {nats:.1f} nats per token, and a uniform guess over its {vocab} ids has "
            f"{math.log(vocab):.1f}: these are ids of another tokenizer, or no text that this target knows"
        )
