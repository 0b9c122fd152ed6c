"""Calls of pipelines of pictures and films: as JSON, and as arguments."""

import copy
import random
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import torch

from mmspec.registry import Pairing, installed, pair
from mmspec.registry.matching import fitting
from tests.draws.claim import Case
from tests.draws.option_values import options_of
from tests.draws.picture_models import ACTIONS, KINDS
from tests.support.examples.written import glm_prompt

MORE: Mapping[str, Sequence[Any]] = {
    "guidance_scale": (1.0, 1.0, 1.5, 3.0, 7.5, 30.0, 1.0001, 0.5, 0.0, -1.0, float("inf"), float("nan")),
    "temperature": (0.0, 0.0, 0.3, 0.7, 1.0, 2.0, 50.0, 1e-3, -1.0, float("nan")),
    "top_k": (0, 1, 2, 3, 1000, -1),
    "top_p": (1.0, 0.9, 0.5, 0.01, 0.0, 1.5),
    "k": (0, 1, 4, 30, -1, 1.5),
    "num_images_per_prompt": (1, 2, 3, 3, 0),
    "negative_prompt": ("", "a blue bird", "red", " "),
    "output_type": ("pt", "np", "pil", "jpg"),
    "steer_every": (1, 3, 7, 100, 0),
    "seed": (0, 3, 2**40, -1, "x"),
    "height": (7, 0, 1000),
    "width": (7,),
    "class_labels": (0, 1, -1, 99),
    "prompt_embeds": (True,),
    "num_frames": (1, 2, 0),
    "num_inference_steps": (1, 3, 0),
    "cache": ("exact", "streaming", "none", "all"),
    "denoising_steps": (2, 5, 0),
    "player": (True,),
}
"""Arguments of calls: the usual values first, and some that are refused."""
SETS = ("num_inference_steps", "denoising_steps")
PICTURE = [name for name in MORE if name not in ("num_frames", *SETS, "cache", "player")]
MAR = ["guidance_scale", "temperature", "num_images_per_prompt", "output_type", *SETS]
IDS = ["temperature", "top_k", "top_p"]
FRAMES = ["temperature", "top_k", "top_p", "k", "output_type", "num_frames", "num_inference_steps", "cache", "player"]
EVERY = ("guidance_scale", "temperature", "top_k", "top_p", "num_frames", "player", "cache", "num_inference_steps")
"""Arguments that calls often have."""


def drawn_call(model: str, dice: random.Random) -> Case:
    """Arguments of a call, as `call.…`."""
    kind, rows = KINDS[model], 0
    case: Case = {}
    if kind.units == "ids":
        case |= {"call.rows": dice.randint(1, kind.rows), "call.preview": [dice.randint(1, 3), dice.randint(1, 3)]}
        case["call.seed"] = dice.randrange(1000)
    elif kind.units == "frames":
        rows = dice.randint(1, kind.rows)
        case |= {"call.rows": rows, "call.given": dice.choice([1, 1, 2, 3])}
        case["call.actions"] = [dice.randrange(ACTIONS) for _ in range(dice.choice([1, 2, 4]))]
    else:
        prompts = dice.randint(1, min(4, kind.rows))
        case["call.prompt"] = [dice.randrange(4) for _ in range(prompts)]
        rows = prompts
        if kind.sizes and (len(kind.sizes) > 1 or dice.random() < 0.3):
            case["call.height"], case["call.width"] = dice.choice(kind.sizes)
    for name in {"mar": MAR, "glm-image": IDS}.get(model, FRAMES if kind.units == "frames" else PICTURE):
        seldom = name in kind.unused or name in ("height", "width", "class_labels", "seed")
        if dice.random() < (0.01 if seldom else 0.35 if name in EVERY else 0.12):
            values = MORE[name]
            case[f"call.{name}"] = dice.choice(values[: len(values) * 2 // 3 or 1] if dice.random() < 0.9 else values)
    if isinstance(case.get("call.negative_prompt"), str) and dice.random() < 0.4:
        said = MORE["negative_prompt"][:3]
        case["call.negative_prompt"] = [dice.choice(said) for _ in range(rows + (dice.random() < 0.05))]
    times = case.get("call.num_images_per_prompt", 1)
    rows *= times if isinstance(times, int) else 1
    if "call.seed" not in case:
        seeds = [dice.randrange(1000) for _ in range(rows + (dice.random() < 0.02))]
        name = dice.choice(["seed", "seed", "seed", "generator"])
        case[f"call.{name}"] = seeds if dice.random() < 0.6 else dice.randrange(1000)
    return case


def arguments(case: Case, pipe: Any) -> dict[str, Any]:
    """The arguments that a case stands for; generators are new ones each time."""
    kind, call = KINDS[case["model"]], {key[5:]: value for key, value in case.items() if key.startswith("call.")}
    if "generator" in call:
        seeds = call["generator"]
        call["generator"] = [generator(each) for each in seeds] if isinstance(seeds, list) else generator(seeds)
    call.setdefault("output_type", "latent")
    if "seed" not in call and "generator" not in call:
        call["seed"] = 0
    if kind.units == "frames":
        return filmed(call, kind.shipped)
    numbers = call.pop("prompt", [0])
    if case["model"] == "mar":
        usual = {"num_inference_steps": 1, "denoising_steps": 3}
        return usual | call | {"class_labels": [each % 5 for each in numbers]}
    if not kind.prompts:
        call.setdefault("class_labels", [each % max(1, pipe.transformer.config.num_classes) for each in numbers])
    else:
        said = [kind.prompts[each % len(kind.prompts)] for each in numbers]
        call["prompt"] = said if len(said) > 1 else said[0]
    if call.pop("prompt_embeds", False):
        call |= embedded(pipe, call)
    if "steer_every" in call:
        call["callback_on_step_end"] = steering
    return call


def embedded(pipe: Any, call: dict[str, Any]) -> dict[str, Any]:
    """Features in place of captions, where the model reads some."""
    if "prompt" not in call or "text_encoder" not in pipe.components:
        return {"prompt_embeds": torch.zeros(1, 2, 12)}
    found = pipe.encode_prompt(call.pop("prompt"), guided=False)
    found = getattr(found, "condition", found)
    return {"prompt_embeds": found.given, "prompt_attention_mask": found.mask}


def steering(pipe: Any, step: int, timestep: int, tensors: dict[str, Any]) -> None:
    """Another scale from a number of units on, where there is guidance."""
    if pipe.guidance_scale > 1:
        pipe.guidance_scale = steered(step)


def steered(step: int) -> float:
    return 1.5 + step % 3


def filmed(call: dict[str, Any], large: bool) -> dict[str, Any]:
    """Of films: first frames, actions between them, and those that follow, from a list or a player."""
    rows, given, actions = call.pop("rows", 1), call.pop("given", 1), call.pop("actions", [0, 1])
    size = (48, 64) if large else (8, 8)
    call["first_frames"] = torch.rand(rows, given, 3, *size, generator=generator(5))
    call["past_actions"] = [[(row + each) % 3 for each in range(given - 1)] for row in range(rows)]
    each = [[(action + row) % 3 for action in actions] for row in range(rows)]
    if call.pop("player", False):
        call["num_frames"] = min(call.get("num_frames", len(each[0])), len(each[0]))
        call["actions"] = lambda number, frames: [row[number] for row in each]
    else:
        call["actions"] = each
        call["num_frames"] = call.get("num_frames", len(each[0]))
    return call


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@cache
def methods_of(name: str) -> dict[str, Pairing]:
    """What the registry lists for a kind of model, but for methods of trained heads: the pairings by name."""
    registry, model = installed(), KINDS[name].make()
    target = registry.target_for(getattr(model, model.target_module))
    if target is None:  # MAR's, which draws plainly
        return {"plain": pair(registry, "plain")}
    found = dict[str, Pairing]()
    for method in fitting(registry, target.offers):
        pairing = pair(registry, method, offers=target.offers, near=(target.owner, "text"))
        if pairing.drafter is None or not pairing.drafter.reads:
            found[method] = pairing
    return found


def made(case: Case) -> Any:
    """The pipeline of a case, with no method yet."""
    settings = {key[7:]: value for key, value in case.items() if key.startswith("config.")}
    pipe = KINDS[case["model"]].make(**settings)
    return fresh(pipe, case.get("dtype"))


def fresh(pipe: Any, dtype: str | None = None) -> Any:
    """A pipeline of the same parts, or of copies of another dtype."""
    parts = dict(pipe.components)
    if dtype:
        modules = {name: part for name, part in parts.items() if isinstance(part, torch.nn.Module)}
        parts |= {name: copy.deepcopy(part).to(getattr(torch, dtype)) for name, part in modules.items()}
    others = {name: value for name, value in pipe.config.items() if not name.startswith("_") and name not in parts}
    new = type(pipe)(**parts, **others)
    new.set_progress_bar_config(disable=True)
    return new


NEEDED = {"drafter.memory_budget": "2GiB", "drafter.condition": [3, 4, 5], "drafter.corpus": [[3, 4, 5, 6] * 8]}
"""Options without which a method is refused."""


def how(case: Case, pipe: Any) -> dict[str, Any]:
    """Arguments of `use`; a method that needs a draft model gets the model itself, with other weights."""
    given = {key[7:]: value for key, value in case.items() if key.startswith("option.")}
    given |= {key: case[key] for key in ("k", "shape", "policy") if key in case}
    if case.get("dtype"):
        given["shape"] = "one"
    pairing = methods_of(case["model"])[case["method"]]
    options = options_of(pairing)
    if "drafter.executor" in options:
        given["drafter.executor"] = "serial"  # processes are other tests' business, and slow
    given |= {name: value for name, value in NEEDED.items() if name in options}
    if "drafter.model" in options:
        given["model"] = perturbed(getattr(pipe, pipe.target_module))
    return given


def generation(case: Case) -> tuple[dict[str, Any], dict[str, Any]]:
    """A prompt of GLM-Image, and the arguments of `generate`."""
    rows, preview = case.get("call.rows", 1), case.get("call.preview", [1, 2])
    picture = (2 * preview[0], 2 * preview[1])
    warps = {name: case[f"call.{name}"] for name in IDS if f"call.{name}" in case}
    sampled = warps.get("temperature") != 0
    given = {"do_sample": sampled, **(warps if sampled else {}), "eos_token_id": None}
    return glm_prompt(range(rows), picture, tuple(preview)), {
        **given,
        "max_new_tokens": 5 * preview[0] * preview[1] + 1,
    }


def perturbed(model: Any) -> Any:
    """The same model with slightly other weights."""
    other, dice = copy.deepcopy(model), generator(2)
    with torch.no_grad():
        for weights in other.parameters():
            noise = torch.randn(weights.shape, generator=dice)
            weights += (0.05 * noise * (weights.float().std(correction=0) + 1e-3)).to(weights.dtype)
    return other
