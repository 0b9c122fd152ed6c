"""The target's texts: continuations of texts, answers to questions, and the questions, too, where there are none.

A drafter meets the target's own text in use, in its chat template, at the user's temperature: so it is trained on it.
A target that was trained on conversations writes a question itself where it is given the beginning of the user's turn
(Magpie, arXiv 2406.08464, § 2.1).
"""

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mmspec.training.work import cached
from mmspec_text.training.chats import Chat
from mmspec_text.training.texts import Answer, of_sheet, prompts_of, sheet

GIVEN, CONTINUED = 64, 448
"""Units of a prompt that the target continues, and most units that it adds."""
AT_ONCE = 128
"""Prompts that are continued in one batch."""


def answered(
    model: Any,
    prompts: Tensor,
    *,
    new: int,
    temperature: float,
    seed: int,
    folder: Path | None = None,
    say: Callable[[str], None] = print,
) -> list[Answer]:
    """The target's answers.

    Prompts are `[row, unit]` int64, with -1 before the shorter ones. An answer has at most `new` units, and ends at the
    end of a text. Temperature 0 is greedy. torch's generator is left as it was. `folder` keeps every finished batch, so
    that a run which was stopped goes on behind it.
    """
    rows, new_rows, began = list[Answer](), 0, time.perf_counter()
    for number, some in enumerate(prompts.split(AT_ONCE)):
        write = partial(_written, model, some, new, temperature, seed + number)
        if folder is None:
            rows += of_sheet(write())
            continue
        folder.mkdir(parents=True, exist_ok=True)
        file = folder / f"{number}.pt"
        new_rows += 0 if file.is_file() else len(some)
        rows += of_sheet(cached(file, (some,), write))
        if new_rows:
            left = (time.perf_counter() - began) / new_rows * (len(prompts) - len(rows)) / 60
            say(f"{len(rows):,} of {len(prompts):,} are written; the others take about {left:.0f} minutes")
    return rows


def questions(model: Any, chat: Chat, openings: Tensor, most: int | None = None, **how: Any) -> Tensor:
    """Questions that the target asks itself, as prompts for `answered`; `how` are the arguments of that.

    `openings` are what the template writes before a user's question, a row for every question. Prompts of more than
    `most` units leave no room for an answer, and are left out.
    """
    said = []
    for row in answered(model, openings, **how):
        text = str(chat.tokenizer.decode(row.ids[row.given :], skip_special_tokens=True)).strip()
        if text:
            said.append(chat.asked([{"role": "user", "content": text}], "a question of the target's own"))
    said = [prompt for prompt in said if most is None or len(prompt) <= most]
    if not said:
        raise ValueError(
            "the target writes no questions of a fitting length behind the beginning of a user's turn: give "
            "conversations (--data)"
        )
    return prompts_of(said)


@torch.no_grad()
def _written(model: Any, prompts: Tensor, new: int, temperature: float, seed: int) -> Tensor:
    """Prompts with what the target writes behind them, in one batch, as a `sheet`."""
    how: dict[str, Any] = {"do_sample": bool(temperature)}
    how |= {"temperature": temperature, "top_k": 0} if temperature else {}
    how |= {"max_new_tokens": new, "pad_token_id": _pad(model)}
    end, seen = ends(model), prompts.to(model.device) >= 0
    ids = torch.where(seen, prompts.to(model.device), _pad(model))
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        written = model.generate(input_ids=ids, attention_mask=seen.long(), **how).cpu()
    rows = []
    for row, given in zip(written, seen.sum(1).tolist(), strict=True):
        row = row[prompts.shape[1] - given :]
        stops = torch.isin(row[given:], end).nonzero()[:, 0]
        rows.append(Answer(row if not len(stops) else row[: given + int(stops[0]) + 1], given))
    return sheet(rows)


def ends(model: Any) -> Tensor:
    """The ids that end a text."""
    end = model.generation_config.eos_token_id
    return torch.tensor(end if isinstance(end, list) else [] if end is None else [end], dtype=torch.int64)


def _pad(model: Any) -> int:
    pad, end = model.generation_config.pad_token_id, ends(model)
    return int(pad) if pad is not None else int(end[0]) if len(end) else 0
