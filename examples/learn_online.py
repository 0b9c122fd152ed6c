"""A drafter that learns while it is used: `python examples/learn_online.py`.

A model continues pieces of a file of Python's library, over and over. Its drafter learns between calls from what it
drafted wrongly. The texts are the same in every pass and equal those without learning; the acceptance rises.
"""

import argparse
import inspect
import time
from importlib import import_module
from typing import Any

import torch

import mmspec

PROMPT = 64
"""Tokens of a prompt."""


def pieces_of(tokenizer: Any, module: str, count: int) -> list[torch.Tensor]:
    """Prompts `[1, token]` from the source of a module, evenly spread over it."""
    ids = tokenizer(inspect.getsource(import_module(module)))["input_ids"]
    stride = max(1, (len(ids) - PROMPT) // count)
    return [torch.tensor([ids[at : at + PROMPT]]) for at in range(0, stride * count, stride)]


def main() -> None:
    ask = argparse.ArgumentParser(description=__doc__)
    ask.add_argument("--model", default="mmspec/text-14m")
    ask.add_argument("--drafter", default="mmspec/text-14m-eagle3")
    ask.add_argument("--module", default="argparse", help="whose source is continued")
    ask.add_argument("--pieces", type=int, default=20)
    ask.add_argument("--calls", type=int, default=200)
    ask.add_argument("--tokens", type=int, default=48, help="new ones of a call")
    ask.add_argument("--k", type=int, default=4)
    ask.add_argument("--rate", type=float, default=1e-4)
    ask.add_argument("--steps", type=int, default=1)
    ask.add_argument("--positions", default="corrected", choices=["corrected", "emitted"])
    ask.add_argument("--temperature", type=float, default=0.8)
    ask.add_argument("--idle", action="store_true", help="lessons in a thread, while the model idles")
    ask.add_argument("--form", help="of a head's drafts; default: the head's")
    asked = ask.parse_args()
    pipe = mmspec.Pipeline.from_pretrained(asked.model)
    model, pieces = pipe.model, pieces_of(pipe.tokenizer, asked.module, asked.pieces)
    learn = mmspec.Learning(rate=asked.rate, steps=asked.steps, positions=asked.positions, idle=asked.idle)
    options = {"form": asked.form} if asked.form else {}
    how = {"do_sample": asked.temperature > 0, "max_new_tokens": asked.tokens, "top_k": 0}
    how |= {"temperature": asked.temperature} if asked.temperature > 0 else {}
    texts: list[torch.Tensor] = []

    def one_pass(spec: Any) -> tuple[float, str]:
        """Continue every piece once: the acceptance rate, and a sentence."""
        accepted = drafted = passes = emitted = 0
        for number, ids in enumerate(pieces):
            torch.manual_seed(number)
            out = model.generate(input_ids=ids, attention_mask=torch.ones_like(ids), **how)
            texts.extend([out] if len(texts) == number else [])
            assert torch.equal(out, texts[number]), "learning changed a text"
            accepted, drafted = accepted + spec.report.accepted, drafted + spec.report.drafted
            passes, emitted = passes + spec.report.row_rounds, emitted + spec.report.emitted
        rate = accepted / drafted
        return rate, f"{accepted} of {drafted} drafted tokens accepted, {rate:.3f}; {emitted / passes:.2f} a pass"

    with mmspec.enable(model, drafter=asked.drafter, k=asked.k, **options) as spec:
        first, said = one_pass(spec)
        print(f"{spec}\nwithout learning: {said}", flush=True)
    with mmspec.enable(model, drafter=asked.drafter, k=asked.k, learn=learn, **options) as spec:
        for done in range(0, asked.calls, len(pieces)):
            began, before = time.perf_counter(), spec.learner.seconds
            rate, said = one_pass(spec)
            share = (spec.learner.seconds - before) / (time.perf_counter() - began)
            calls = f"calls {done + 1:3}-{done + len(pieces):3}"
            print(f"{calls}: {said}, {rate / first - 1:+.0%}; lessons {share:.0%} of the time", flush=True)


if __name__ == "__main__":
    main()
