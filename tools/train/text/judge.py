"""Recipe `text-judge`: a judge for the shipped text model, by labels that nobody marked (AutoJudge, arXiv 2504.20039).

The model knows no facts, so that its answer is the form of what it writes. A question is ten lines of code, and the
answer is the last statement that begins in a few tokens behind them: its keyword, and how deep it stands. A token that
the draft model would write is right if the answer behind it is the same.
"""

import json
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch

from mmspec.files import save_text
from mmspec.hosts.fingerprint import identity
from mmspec.hosts.loading import load_model, load_tokenizer
from mmspec.kits.text.bench.settings import DRAFTER
from mmspec_zoo.relaxed.judge import FILE, JudgeHead
from mmspec_zoo.relaxed.judge_training import fitted, mined, rates
from tools.train.text import corpus as corpora

TARGET, NAME = "mmspec/text-14m", "text-14m-judge"
ANSWER = r"(?m)^ *(?:def|class|return|if|elif|else|for|while|raise|try|except|with|import|from|yield)\b"
"""What is an answer; the last one of a text counts."""
HELD = 80
"""Held-out questions."""
NEW, GIVEN, EACH = 20, 10, 6
"""Tokens of an answer's text, lines of a question, and most questions of a document."""


def questions(documents: Sequence[str]) -> Iterator[str]:
    """The questions of some documents, spread over each."""
    for text in documents:
        lines = text.splitlines(keepends=True)
        for last in range(GIVEN, len(lines), max(GIVEN, len(lines) // EACH)):
            yield "".join(lines[last - GIVEN : last])


def answer(text: str) -> str | None:
    """The answer of a text; None: it has none."""
    found = re.findall(ANSWER, text)
    return found[-1] if found else None


def train(
    out: Path, prose_files: list[Path], most: int, device: str = "cpu", say: Callable[[str], None] = print
) -> None:
    """Fit the judge on questions about what the model learnt, and write `<out>/text-14m-judge`.

    Args:
        out: Folder that receives the judge.
        prose_files: As for the model; only code is asked about.
        most: Questions.
        device: Where the models run.
        say: Receives lines of progress.
    """
    corpus, tokenizer = corpora.load(prose_files), load_tokenizer(TARGET)
    model, small = load_model(TARGET, device), load_model(DRAFTER, device)
    every, held = list(questions(corpus.code)), list(questions(corpus.held_out_code))
    learnt, held = (some[:: max(1, len(some) // most)][:most] for some, most in ((every, most), (held, HELD)))
    say(f"{len(learnt)} questions, and {len(held)} held out")
    judged, unseen = (
        mined(model, small, [torch.tensor(tokenizer(text)["input_ids"]) for text in some], tokenizer, ANSWER, NEW)
        for some in (learnt, held)
    )
    weight, bias = (part.half().float() for part in fitted(judged))
    folder = out / NAME
    folder.mkdir(parents=True, exist_ok=True)
    JudgeHead(weight.half(), bias.half(), TARGET, identity(model)).save(folder / FILE)
    facts = {
        "kind": "judge",
        "parameters": len(weight) + 1,
        "tokens": {"right": int(judged.right.sum()), "wrong": int((~judged.right).sum())},
        "held_out": {name: round(share, 4) for name, share in rates(unseen, weight, bias).items()},
        "recipe": {"questions": len(learnt), "answer": ANSWER, "new_tokens": NEW, "draft_model": DRAFTER},
    }
    save_text(folder / "training.json", json.dumps(facts, indent=2) + "\n")
    say(json.dumps(facts["held_out"]))
