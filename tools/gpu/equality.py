"""What is promised to be equal, counted on this device: one shape in bfloat16, stock sampling in float32.

Random drafts that are partly right stand for a method: a chain and a full binary tree whose right path lies at random
nodes, so that commits of the tree have to move keys.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

import mmspec
from mmspec.api.build import decoder_for
from mmspec.core.decoder import Decoder
from mmspec.core.noise import DraftNoise
from mmspec.core.philox import PhiloxSource
from mmspec.core.protocols import Target
from mmspec.core.report import Report
from mmspec.core.state import State
from mmspec.core.transfer import on_device
from mmspec.core.types import Draft
from mmspec.core.types import Step as Round
from mmspec.core.warp import Warp
from mmspec.hosts.loading import load_model
from tools.gpu.common import HALF, MODES, Step

SAMPLED = Warp.sampling(0.8)
NODES, WRONG = 15, 0.15
"""Drafted nodes, and the chance of a right unit to be replaced."""
LAWS: Mapping[str, Mapping[str, Any]] = {
    "greedy": {"do_sample": False},
    "T 0.8": {"do_sample": True, "temperature": 0.8, "top_k": 0},
    "T 0.9 k 50 p 0.9": {"do_sample": True, "temperature": 0.9, "top_k": 50, "top_p": 0.9},
}
HEAD = {"method": "eagle", "k": 3, "drafter": "mmspec/text-14m-eagle3"}
METHODS: Mapping[str, Mapping[str, Any]] = {
    "prompt-lookup": {"method": "prompt-lookup", "k": 7},
    "suffix": {"method": "suffix", "k": 7},
    "token-recycling": {"method": "token-recycling", "k": 4, "options": {"nodes": 15}},
    "eagle tree": {**HEAD, "options": {"width": 3, "nodes": 7}},
    "eagle chain": {**HEAD, "options": {"form": "chain"}},
}


def methods(step: Step) -> Mapping[str, Mapping[str, Any]]:
    """The methods of the shipped text model."""
    return {"prompt-lookup": METHODS["prompt-lookup"]} if step.dry else METHODS


class Truth:
    """A `Drafter` of the next units of a known output, some of them wrong: a chain, or a binary tree.

    Args:
        truth: The output, by row.
        tree: Whether drafts are trees.
    """

    needs = frozenset({"discrete"})

    def __init__(self, truth: Sequence[Sequence[int]], tree: bool) -> None:
        self.truth, self.random = truth, torch.Generator().manual_seed(0)
        self.parents = [(i - 2) // 2 if i > 1 else -1 for i in range(NODES)] if tree else list(range(-1, NODES - 1))
        self.offers = frozenset({"tree" if tree else "chain"})
        self.depth = (NODES + 1).bit_length() - 1 if tree else NODES
        self.vocab = 0

    def bind(self, target: Target) -> None:
        self.vocab = target.vocab or 0

    def width(self, k: int) -> int:
        return NODES

    def start(self, state: State, inputs: Any) -> None:
        return None

    def observe(self, state: State, step: Round) -> None:
        pass

    def propose(self, state: State, k: int, noise: DraftNoise) -> Draft:
        drafted = [self._row(truth[known:]) for truth, known in zip(self.truth, state.host.emitted, strict=True)]
        return Draft.tree(on_device(drafted, state.root.device, torch.int64), self.parents)

    def _row(self, ahead: Sequence[int]) -> list[int]:
        units, here = [self._below(self.vocab) for _ in self.parents], -1
        for right in ahead[: self.depth]:
            children = [node for node, parent in enumerate(self.parents) if parent == here]
            if not children:
                break
            here = children[self._below(len(children))]
            if float(torch.rand((), generator=self.random)) >= WRONG:
                units[here] = right
        return units

    def _below(self, most: int) -> int:
        return int(torch.randint(most, (), generator=self.random))


def end_of(decoder: Decoder, inputs: Any, new: int, **how: Any) -> tuple[list[Tensor], Report, list[Tensor]]:
    """Units, report, and copies of the committed keys of every layer."""
    *_, state = decoder.rounds(inputs, new, warp=SAMPLED, **how)
    slots = state.cache.slots
    length = int(slots.length.min())
    layers = [vars(layer).get("keys") for layer in slots.layers]
    return state.output(), state.report, [keys[:, :, :length].clone() for keys in layers if keys is not None]


def equal(ours: Sequence[Tensor], right: Sequence[Tensor]) -> int:
    return sum(map(torch.equal, ours, right))


def parted(ours: Sequence[Tensor], right: Sequence[Tensor]) -> list[int]:
    """The first unit at which every row differs; -1: none."""
    return [int(apart.nonzero()[0]) if (apart := a != b).any() else -1 for a, b in zip(ours, right, strict=True)]


def compare(step: Step, model: str, target: Target, inputs: Any, seeds: list[int], mode: str) -> None:
    """Plain decoding of 16 nodes against itself, a chain and a tree of 15 drafted ones, and eager plain decoding."""
    compile, new = MODES[mode], 12 if step.dry else 64
    how: dict[str, Any] = {"shape": NODES + 1, "compile": compile}
    plain = Decoder(target, **how)
    truth, report, keys = end_of(plain, inputs, new, seed=seeds)

    def line(what: str, ours: list[Tensor], report: Report, **more: Any) -> None:
        figures = {"texts": len(ours), "equal": equal(ours, truth), "parted": parted(ours, truth)}
        step.say(
            "one shape",
            model=model,
            mode=mode,
            what=what,
            **figures,
            captured=report.compiled or report.recorded,
            **more,
        )

    line("plain twice", *end_of(plain, inputs, new, seed=seeds)[:2])
    for what in ("chain", "tree"):
        drafter = Truth([row.tolist() for row in truth], what == "tree")
        decoder = Decoder(target, drafter, k=drafter.depth, **how)
        ours, report, found = end_of(decoder, inputs, new, seed=seeds)
        same = min(each.shape[2] for each in (*keys, *found))
        pairs = zip(keys, found, strict=True)
        apart = [float(f"{float((a[:, :, :same] != b[:, :, :same]).float().mean()):.2e}") for a, b in pairs]
        length = round(report.acceptance_length, 3)
        line(what, ours, report, acceptance_length=length, keys_apart_first=apart[:4], keys_apart_last=apart[-1])
    if mode != "eager":
        line("eager plain", *end_of(Decoder(target, shape=NODES + 1, compile=False), inputs, new, seed=seeds)[:2])


def one_shape(step: Step, name: str, model: Any, mode: str) -> None:
    target = decoder_for(model, "plain").target

    def both() -> None:
        for seed in (0,) if step.dry else (0, 1):
            given = step.prompt(4, 32 if step.dry else 96, target.vocab or 0, seed)
            given["attention_mask"][1, :17] = 0
            compare(step, name, target, given, [10 * seed + row for row in range(4)], mode)

    step.section("one shape", both, 60 if mode == "compiled" else 15, keep=3, model=name, mode=mode)


def shipped(step: Step, model: Any, mode: str) -> None:
    """Methods on the shipped text model, bfloat16: texts equal to plain decoding of the same shape."""

    def one(label: str) -> None:
        decoder = decoder_for(model, **METHODS[label], shape="one", compile=MODES[mode])
        plain = decoder_for(model, "plain", shape=decoder.one_width(), compile=MODES[mode])
        same, new = 0, 12 if step.dry else 64
        calls = range(1 if step.dry else 3)
        for seed in calls:
            given, seeds = step.pieces(4, 48, seed), [4 * seed + row for row in range(4)]
            ours, right = (each.generate(given, new, seed=seeds, warp=SAMPLED) for each in (decoder, plain))
            same += equal(ours.units, right.units)
        report = ours.report
        figures = {"equal": same, "texts": 4 * len(calls), "acceptance_length": round(report.acceptance_length, 3)}
        step.say(
            "methods",
            mode=mode,
            method=label,
            **figures,
            width=decoder.one_width(),
            captured=report.compiled or report.recorded,
        )

    for label in methods(step):
        least = 40 if mode == "compiled" else 10
        step.section("methods", partial(one, label), least, keep=2, mode=mode, method=label)


def stock(step: Step, name: str, model: Any) -> None:
    """`noise="torch"` in float32: tokens, and the generator afterwards, against unmodified `generate`."""

    def law_of(law: str) -> None:
        found = dict[str, list[int]]()
        for seed in range(1 if step.dry else 3):
            text = name == step.text
            given = step.pieces(2, 48, seed) if text else step.prompt(2, 48, model.config.vocab_size, seed)
            new = {"max_new_tokens": 12 if step.dry else 64, "eos_token_id": None, "pad_token_id": 0}
            call: dict[str, Any] = {**given, **new, **LAWS[law]}
            torch.manual_seed(seed)
            right, after = model.generate(**call), torch.rand(2, device=step.device)
            for method in ("plain", "prompt-lookup", "token-recycling"):
                torch.manual_seed(seed)
                with mmspec.enable(model, method, noise="torch"):
                    ours = model.generate(**call)
                same = torch.equal(right, ours), torch.equal(after, torch.rand(2, device=step.device))
                found[method] = [a + b for a, b in zip(found.get(method, (0, 0)), same, strict=True)]
        step.say("stock", model=name, law=law, calls=seed + 1, tokens_and_generator_equal=found)

    for law in LAWS:
        step.section("stock", partial(law_of, law), 8, model=name, law=law)


def philox(step: Step) -> None:
    """Numbers of the device and of the CPU."""
    emitted = torch.tensor([5, 600, 70000])
    places = (step.device, torch.device("cpu"))
    here, host = (PhiloxSource.seeded(7, 3, place).fresh(emitted.to(place), 0, 4) for place in places)
    e, f = here.exponential(999).cpu(), host.exponential(999)
    figures = {"exponentials_equal": float((e == f).float().mean()), "worst": float(((e - f).abs() / f).max())}
    step.say("philox", uniforms_equal=bool(torch.equal(here.uniform().cpu(), host.uniform())), **figures)


def main() -> None:
    step = Step("equality")
    half, place = load_model(step.text, str(step.device), HALF), str(step.device)
    first = "default" in step.modes()
    if first:
        step.section("philox", lambda: philox(step))
        stock(step, step.text, load_model(step.text, place, torch.float32))
    for mode in step.modes():
        one_shape(step, step.text, half, mode)
        shipped(step, half, mode)
        one_shape(step, "llama-1b", step.workload("llama-1b").model, mode)
    if first:
        stock(step, "llama-1b", step.workload("llama-1b", torch.float32).model)
    step.say("done", modes=step.modes())


if __name__ == "__main__":
    with torch.no_grad():
        main()
