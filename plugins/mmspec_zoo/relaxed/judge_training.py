"""Training a judge: from right and wrong answers to one linear layer (`mmspec_zoo.relaxed.judge`).

Judge decoding (Bachmann et al., arXiv 2501.19309). A line of data is a question with a right answer and a wrong one.
Every token of the right answer is a right token. Of the wrong answer the first token that differs from the right one's
is the wrong token: those before it are the right answer's, and those behind it follow a mistake, so neither counts.
The target's states at the tokens are read, after all that is before them, as a pass over a draft has them. The
loss is cross entropy in which wrong tokens, which are few, weigh more.
The paper could not be read here: this follows a reconstruction, in which its people marked the wrong tokens.

Or nobody marks any, and questions alone are given (AutoJudge: Garipov et al., arXiv 2504.20039; read from the authors'
code, garipovroma/autojudge: src/find_important_tokens.py). Where a draft model would write another token than the
target's greedy answer has, from left to right, that token is put in its place, and the target goes on from there. If it
comes to the same answer, the token is right, and the search goes on in the new text; else it is wrong, and the search
goes on in the old one. The answer is what a regular expression finds last. Their classifier reads the draft model's
state beside the target's, too, and its threshold is chosen for a recall; here it is the judge that there is.
The fit is convex, takes seconds, and has one result; a run that stopped is begun anew.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

from mmspec.core.hidden import FINAL
from mmspec.hosts.draft_models import own_target
from mmspec.kits.text.language import ids_to_answer
from mmspec.registry.printable import shown
from mmspec.untrusted import numbered_json_lines

MOST = 1 << 28  # most bytes of a file of answers
FORM = '{"prompt": "…", "correct": "…", "wrong": "…"}'


@dataclass(frozen=True)
class Triple:
    """A question with two answers."""

    prompt: Tensor  # `[unit]` int64
    correct: Tensor  # the right answer, `[unit]` int64
    wrong: Tensor  # the wrong answer up to its first wrong token, `[unit]` int64
    where: str  # names its line in messages


@dataclass(frozen=True)
class Judged:
    """States of tokens, `[token, hidden]` float32, and which of them are right, `[token]` bool."""

    states: Tensor
    right: Tensor


def read_triples(files: Sequence[Path], tokenizer: PreTrainedTokenizerBase) -> list[Triple]:
    """The lines of files: JSON of a prompt (a text, or messages for the chat template), a correct and a wrong answer.
    Refuses a line in which no token of the wrong answer differs.
    """
    triples = [_triple(line, tokenizer, f"line {n} of {shown(file)}") for file in files for n, line in _lines(file)]
    if not triples:
        raise ValueError(f"there is nothing to learn from: every line of a file holds {FORM}")
    return triples


def states_of(model: Any, triples: Sequence[Triple]) -> Judged:
    """The states of the answers' tokens."""
    target = own_target(model).with_hidden([FINAL])
    states, right = list[Tensor](), list[Tensor]()
    for triple in triples:
        for answer, wrong in ((triple.correct, False), (triple.wrong, True)):
            text = torch.cat([triple.prompt, answer])[None].to(model.device)
            try:
                hidden = target.start(text, 1, 1).hidden
            except ValueError as error:
                raise ValueError(f"{triple.where}: {error}") from error
            assert hidden is not None
            counted = 1 if wrong else len(answer)
            states.append(hidden[0, -counted:].float().cpu())
            right.append(torch.full((counted,), not wrong))
    return Judged(torch.cat(states), torch.cat(right))


def read_questions(files: Sequence[Path], tokenizer: PreTrainedTokenizerBase) -> list[Tensor]:
    """The prompts of the lines of files, `[unit]` int64 each: a text, or messages for the chat template."""
    found = list[Tensor]()
    for file in files:
        for number, line in _lines(file):
            where, prompt = f"line {number} of {shown(file)}", line.get("prompt")
            ids = _question(prompt, tokenizer, where) if isinstance(prompt, str | list) else []
            if not ids:
                raise ValueError(f'{where} has no question: {{"prompt": "…"}}; messages may stand for the prompt')
            found.append(torch.tensor(ids, dtype=torch.int64))
    return found


@torch.no_grad()
def mined(
    model: Any, draft: Any, questions: Sequence[Tensor], tokenizer: PreTrainedTokenizerBase, answer: str, new: int
) -> Judged:
    """The states of tokens that a draft model would write instead of the target's, and which of them leave the answer
    as it is; `answer` finds it, in texts of at most so many new tokens. Questions that the target does not answer are
    left out; refuses a draft model of another vocabulary.
    """
    if draft.config.vocab_size != model.config.vocab_size:
        raise ValueError(
            f"the draft model has {draft.config.vocab_size} ids, and the target {model.config.vocab_size}: tokens of "
            "one cannot stand in the other's place"
        )
    target, sought = own_target(model).with_hidden([FINAL]), re.compile(answer)
    states, right = list[Tensor](), list[bool]()
    for question in questions:
        first = len(question)

        def answered(ids: Tensor, first: int = first) -> tuple[Tensor, str | None]:
            """The target's text behind ids `[1, unit]`, and its answer."""
            given = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
            left = first + new - ids.shape[1]
            text = model.generate(**given, do_sample=False, max_new_tokens=left) if left > 0 else ids
            found = [match.group() for match in sought.finditer(tokenizer.decode(text[0, first:]))]
            return text, found[-1] if found else None

        text, wanted = answered(question[None].to(model.device))
        begin = first
        while wanted is not None:
            others = draft(input_ids=text).logits.argmax(-1)[0, begin - 1 : -1]
            differs = (others != text[0, begin:]).nonzero()[:, 0]
            if not len(differs):
                break
            at = begin + int(differs[0])
            changed = torch.cat([text[:, :at], others[differs[0]][None, None]], 1)
            hidden = target.start(changed, 1, 1).hidden
            assert hidden is not None
            states.append(hidden[0, -1:].float().cpu())
            new_text, found = answered(changed)
            right.append(found == wanted)
            text, begin = new_text if found == wanted else text, at + 1
    width = model.get_input_embeddings().weight.shape[1]
    return Judged(torch.cat([torch.zeros(0, width), *states]), torch.tensor(right, dtype=torch.bool))


def fitted(judged: Judged, wrong_weight: float | None = None, decay: float = 1e-2) -> tuple[Tensor, Tensor]:
    """The layer of least weighted cross entropy: its weight `[hidden]` and its bias `[1]`.

    A wrong token has `wrong_weight` times the weight of a right one; None: both kinds weigh the same together. `decay`
    is of the squares of the weights, for states of unit variance.
    """
    states, right = judged.states.double(), judged.right
    mean, spread = states.mean(0), states.std(0).clamp(min=1e-6)
    states = (states - mean) / spread
    each = float(right.sum() / (~right).sum()) if wrong_weight is None else wrong_weight
    weights = torch.where(right, 1.0, each).double()
    weights = weights / weights.sum()
    layer = torch.zeros(states.shape[1] + 1, dtype=torch.float64, requires_grad=True)
    search = torch.optim.LBFGS([layer], max_iter=300, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        search.zero_grad()
        entropy = nn.functional.binary_cross_entropy_with_logits(
            states @ layer[:-1] + layer[-1], right.double(), weights, reduction="sum"
        )
        whole = entropy + decay / 2 * layer[:-1].square().sum()
        whole.backward()
        return whole

    search.step(loss)
    weight = (layer[:-1] / spread).detach()
    return weight.float(), (layer[-1:] - weight @ mean).detach().float()


def rates(judged: Judged, weight: Tensor, bias: Tensor) -> Mapping[str, float]:
    """The shares of right tokens that a judge accepts, and of wrong ones that it refuses, at δ = 0.5."""
    accepted = judged.states @ weight + bias > 0
    return {
        "right accepted": float(accepted[judged.right].float().mean()),
        "wrong refused": float((~accepted[~judged.right]).float().mean()),
    }


def _lines(file: Path) -> list[tuple[int, dict[str, Any]]]:
    return numbered_json_lines(file, MOST)


def _triple(line: Mapping[str, Any], tokenizer: PreTrainedTokenizerBase, where: str) -> Triple:
    prompt, correct, wrong = (line.get(name) for name in ("prompt", "correct", "wrong"))
    if not (isinstance(correct, str) and isinstance(wrong, str) and isinstance(prompt, str | list)):
        raise ValueError(f"{where} is not of the form {FORM}; messages may stand for the prompt")
    question = torch.tensor(_question(prompt, tokenizer, where), dtype=torch.int64)
    right, other = (_answer(text, tokenizer) for text in (correct, wrong))
    shorter = min(len(right), len(other))
    differs = (right[:shorter] != other[:shorter]).nonzero()[:, 0]
    first = int(differs[0]) if len(differs) else shorter
    if not len(question) or not len(right) or first >= len(other):
        raise ValueError(f"{where}: the prompt and the right answer have words, and the wrong one has other tokens")
    return Triple(question, right, other[: first + 1], where)


def _question(prompt: str | list[Any], tokenizer: PreTrainedTokenizerBase, where: str) -> list[int]:
    if isinstance(prompt, str):
        return list(tokenizer(prompt)["input_ids"])
    try:
        return ids_to_answer(prompt, tokenizer)
    except Exception as error:  # templates raise whatever their author chose
        raise ValueError(f"{where}: the target's chat template does not take these messages: {shown(error)}") from error


def _answer(text: str, tokenizer: PreTrainedTokenizerBase) -> Tensor:
    return torch.tensor(tokenizer(text, add_special_tokens=False)["input_ids"], dtype=torch.int64)
