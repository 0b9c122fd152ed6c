"""Recurrent layers over trees: equality on the shipped hybrid, and a round of 16 layers of Mamba-2's 2.7 B shape."""

import time
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch

import mmspec
from mmspec.api.build import decoder_for
from mmspec.core.decoder import Decoder
from mmspec.hosts.loading import load_model
from tools.bench.core.steps import DEPTH, StaticTree
from tools.gpu.common import HALF, MODES, Step
from tools.gpu.equality import compare
from tools.gpu.figures import passes

NAME, LAYERS = "mamba2-2.7b", 16
"""The shape, and how many of its 64 layers are there: all would compile for minutes."""


def stock(step: Step, model: Any) -> None:
    for seed in range(1 if step.dry else 2):
        new = {"max_new_tokens": 12 if step.dry else 64, "eos_token_id": None, "pad_token_id": 0}
        law = {"do_sample": True, "temperature": 0.8, "top_k": 0}
        call: dict[str, Any] = {**step.prompt(2, 48, model.config.vocab_size, seed), **new, **law}
        torch.manual_seed(seed)
        right = model.generate(**call)
        for method in ("plain", "prompt-lookup", "token-recycling"):
            torch.manual_seed(seed)
            with mmspec.enable(model, method, noise="torch"):
                same = bool(torch.equal(right, model.generate(**call)))
            step.say("stock", model="ssm-5m", method=method, seed=seed, equal=same)


def shipped(step: Step) -> None:
    model = load_model("mmspec/ssm-5m", str(step.device), torch.float32)
    stock(step, model)
    target = decoder_for(model.to(HALF), "plain").target
    given = step.prompt(4, 48, model.config.vocab_size)
    for mode in step.modes():
        work = partial(compare, step, "ssm-5m", target, given, [0, 1, 2, 3], mode)
        step.section("one shape", work, 25, model="ssm-5m", mode=mode)


def large(step: Step) -> None:
    workload = step.workload(NAME, num_hidden_layers=2 if step.dry else LAYERS)
    target = decoder_for(workload.model, "plain").target
    given = workload.prompt(1, 32 if step.dry else 512)
    with step.alone():
        passes(step, NAME, target, given, (1, 16))

    def rounds(mode: str, nodes: int) -> None:
        tree = StaticTree(nodes - 1, DEPTH)
        parts: Sequence[Any] = (tree,) if nodes > 1 else ()
        decoder = Decoder(target, *parts, k=tree.depth if parts else 0, shape="one", compile=MODES[mode])
        state = decoder.start(given, 60 + 20 * (decoder.k + 1))
        began = time.monotonic()
        decoder.advance(state)
        first = round(time.monotonic() - began, 1)
        with step.alone():
            ms = step.wall_ms(partial(decoder.advance, state), 12)
        captured = {"captured": state.report.compiled or state.report.recorded, "first_round_seconds": first}
        step.say("round", model=NAME, mode=mode, nodes=nodes, ms=ms, **captured)

    for mode in step.modes():
        for nodes in (1, 16):
            least = 60 if mode == "compiled" else 10
            step.section("round", partial(rounds, mode, nodes), least, model=NAME, mode=mode, nodes=nodes)


def main() -> None:
    step = Step("recurrent")
    step.section("shipped", lambda: shipped(step), 20)
    step.section("large", lambda: large(step), 30)
    step.say("done")


if __name__ == "__main__":
    with torch.no_grad():
        main()
