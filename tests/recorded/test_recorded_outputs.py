"""The outputs of all shipped models for a fixed seed, method by method: today's equal those on file.

A refactoring must not change what anybody gets for a seed, and equality with plain decoding does not show it where both
change. To record again, after a change that is meant to change outputs: `RECORD=1 pytest tests/recorded`.

Codes and tokens are compared by hash. Numbers (continuous tokens, denoised frames) depend on a machine's arithmetic, so
their means over 16 parts are compared, to 1e-3.
"""

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import mmspec
from mmspec.registry import installed
from mmspec_text.head_specs import HEAD_METHODS
from tests.support.players import Thinkers

FILE = Path(__file__).parent / "outputs.json"
SMALL = "mmspec/text-1m"
SIZE = (48, 64)
"""Height and width of the shipped worlds' frames."""
CODE = "    def push(self, item):\n        self._items.append(item)\n\n"
TEXTS = [f"class Stack:\n{CODE}class Queue:\n{CODE}class Heap:\n", "KING RICHARD II:\nWhat say you, "]

TEXT: dict[str, dict[str, Any]] = {
    "plain": {},
    "prompt-lookup": {"k": 6},
    "suffix": {"k": 8},
    "suffix-tree": {"k": 8},
    "token-recycling": {"k": 4},
    "draft-model": {"drafter": SMALL, "k": 3},
    "draft-tree": {"drafter": SMALL, "k": 3},
    "dyspec": {"drafter": SMALL, "k": 3, "nodes": 8, "form": "greedy"},
    "sequoia": {"drafter": SMALL, "k": 3, "nodes": 8},
    "rest": {"corpus": __file__, "tokenizer": SMALL, "k": 6},
    "rasd": {"drafter": SMALL, "corpus": __file__, "tokenizer": SMALL, "k": 3},
    "united": {"drafter": SMALL, "k": 6},
    "bild": {"drafter": SMALL, "k": 4},
    "fly": {"drafter": SMALL, "k": 12, "window": 3},
    "rsd": {"drafter": SMALL, "k": 3},
    "stree": {"drafter": SMALL, "k": 4, "nodes": 10},
}
ATTENTION: dict[str, dict[str, Any]] = {
    "cascade": {"budget": 64, "k": 6},
    "triforce": {"budget": 64, "k": 6},
    "grammar": {"k": 8},
    "jacobi-text": {"k": 8},
    "lookahead": {"k": 6},
    "layer-skip": {"k": 3, "exit": 4},
    "swift": {"k": 6, "nodes": 16},
    "del": {"k": 4},
    "pearl": {"drafter": SMALL, "k": 4},
    "saguaro": {"drafter": SMALL, "k": 4},
    "mirror-sd": {"drafter": SMALL, "k": 4, "branches": 2},
    "llmcad": {"drafter": SMALL, "k": 6},
    "s2d": {"drafter": SMALL, "k": 4},
    "rapid": {"k": 3, "eta": 0, "first": 1, "chunk": 8, "chunks": 2, "end": 8},
    "ambedkar": {"drafter": SMALL, "condition": "All persons are equal before the law.\n", "k": 3},
    "vocab-trim": {"drafter": SMALL, "corpus": range(1024), "k": 3},
    "omnidraft": {"drafter": SMALL, "k": 3},
    "specmemo": {"drafter": SMALL, "k": 3, "memory_budget": "8MB"},
    "ppd-model": {"drafter": "mmspec/text-14m", "prompts": "mmspec/text-14m-ppd", "k": 4},
}
IMAGE: dict[str, dict[str, Any]] = {
    **{name: {"k": 16} for name in ("gs-sjd", "gs-sjd-pac", "mc-sjd", "sjd-pac")},
    "sjd": {"k": 16, "init": "above"},
    "gsd": {"k": 16, "init": "above", "redraw": "coupled"},
    "lantern": {"k": 16, "rule.k": 10},
}
CONTINUOUS: dict[str, dict[str, Any]] = {
    "plain": {},
    "reflection": {"k": 8},
    "denoise-ahead": {},
    "causal-sets": {},
    "draft-reflection": {"model": "mmspec/emoji-continuous", "k": 3},
    "cspd": {"model": "mmspec/emoji-continuous", "k": 3, "tau": 42},
}
FRAMES: dict[str, dict[str, Any]] = {
    "plain": {},
    "branch-prediction": {"k": 1},
    "nfd": {"k": 3},
    "student": {"k": 1},
}
PLAYED = ("branch-prediction", "student")
"""Methods that make frames while a player thinks."""
CODED: dict[str, dict[str, Any]] = {"plain": {}, "frame-gs-sjd": {"k": 16}}


def write(pipe: Any) -> tuple[Tensor, Any]:
    """Texts: greedy and sampled, two prompts."""
    calls = [pipe(TEXTS, max_new_tokens=32, temperature=t, seed=[3, 4]) for t in (0.8, 0.0)]
    return torch.cat([ids for call in calls for ids in call.ids]), calls[1].report


def draw(pipe: Any) -> tuple[Tensor, Any]:
    drawn = pipe(["red heart", "grinning face"], guidance_scale=2.0, seed=[3, 4], output_type="latent")
    return drawn.images, drawn.report


def walk(pipe: Any) -> tuple[Tensor, Any]:
    frames = torch.rand(2, 3, 3, *SIZE, generator=torch.Generator().manual_seed(0))
    actions = torch.tensor([[1, 2, 0, 1, 1], [2, 2, 1, 0, 2]])
    call = {"past_actions": [[0, 1], [1, 1]], "seed": [3, 4], "output_type": "latent"}
    if pipe.decoder().name in PLAYED:
        thinkers = Thinkers()
        made = pipe(frames, thinkers.player(pipe, actions.T), num_frames=actions.shape[1], **call)
        thinkers.leave()
    else:
        made = pipe(frames, actions, **call)
    return made.frames, made.report


MODELS: dict[str, tuple[Callable[[Any], tuple[Tensor, Any]], dict[str, dict[str, Any]]]] = {
    "text-14m": (write, TEXT | ATTENTION),
    "text-1m": (write, {name: TEXT[name] for name in ("plain", "suffix", "token-recycling")}),
    "ssm-5m": (write, TEXT),
    "emoji": (draw, {"plain": {}} | IMAGE),
    "emoji-continuous": (draw, CONTINUOUS),
    "four-courts": (walk, FRAMES),
    "four-courts-tokens": (walk, CODED),
}
EQUAL = {*TEXT, *ATTENTION} - {"plain", "rsd", "bild", "fly", "ambedkar"}
"""Methods of texts that have plain's outputs, which other tests of the fast tier show; theirs are in the slow tier."""
TWICE = {("emoji", "sjd"), ("emoji", "gs-sjd-pac"), ("emoji", "lantern"), ("text-14m", "rsd"), ("text-14m", "bild")}
"""Whose parts other cases have: both drafters of windows, with siblings and without, both grouped rules, `ssm-5m`."""
SLOW = {(model, method) for model, (_, methods) in MODELS.items() for method in methods if method in EQUAL} | TWICE
CASES = [
    pytest.param(model, method, id=f"{model}-{method}", marks=[pytest.mark.slow] if (model, method) in SLOW else [])
    for model, (_, methods) in MODELS.items()
    for method in methods
]


@pytest.fixture(scope="module")
def loaded() -> Callable[[str], Any]:
    pipes: dict[str, Any] = {}

    def load(name: str) -> Any:
        if name not in pipes:
            pipes[name] = mmspec.Pipeline.from_pretrained(f"mmspec/{name}")
            pipes[name].set_progress_bar_config(disable=True)
        return pipes[name]

    return load


def described(units: Tensor, report: Any) -> dict[str, Any]:
    """The record of an output: its hash or its means, and how it came about."""
    counts = {"shape": list(units.shape), "rounds": report.rounds, "accepted": report.accepted}
    if units.is_floating_point():
        parts = units.double().flatten().tensor_split(16)
        return counts | {"means": [round(float(part.mean()), 4) for part in parts]}
    return counts | {"sha256": hashlib.sha256(units.long().cpu().numpy().tobytes()).hexdigest()}


@pytest.mark.parametrize(("model", "method"), CASES)
def test_same_outputs_as_on_file(loaded: Callable[[str], Any], model: str, method: str) -> None:
    make, methods = MODELS[model]
    found = described(*make(loaded(model).use(method, policy="fixed", **methods[method])))
    recorded = json.loads(FILE.read_text()) if FILE.exists() else {}
    if os.environ.get("RECORD"):
        recorded.setdefault(model, {})[method] = found
        FILE.write_text(json.dumps(recorded, indent=1) + "\n")
        return
    then = recorded[model][method]
    assert found.pop("means", None) == pytest.approx(then.pop("means", None), abs=1e-3)
    assert found == then


def test_every_method_of_ours_that_fits_is_on_file() -> None:
    """A method that is added is recorded too."""
    owners = ("core", "text", "image", "continuous", "ssm", "video", "zoo")
    ours = {method.name for method in installed().components("method") if method.owner in owners}
    # The first names another; the second is for pipelines of diffusers; for the others no models or heads are shipped.
    left_out = {
        "auto",
        "speculative-denoising",
        "judge",
        "assd",
        "pard",
        *(method.name for method in HEAD_METHODS),
    }
    assert ours - left_out == {method for methods in json.loads(FILE.read_text()).values() for method in methods}
