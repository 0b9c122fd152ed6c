"""Drawing of decoders at any setting: the zoo's recipes, keys of their configurations that change numbers, texts.

Settings stand in a case as `config.<key>`, arguments of `generate` as `call.<name>`, and values of the model's own
generation configuration as `model.<name>`.
"""

import dataclasses
import json
import random
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedConfig, PreTrainedModel

from tests.draws.claim import Case
from tests.draws.owned import OWNED, with_own_attention
from tests.draws.settings import LENGTH, another, keys
from tests.support.zoo import ARCHITECTURES, RECURRENT, REFUSED, Recipe
from tests.support.zoo.recipe import SPREAD, scaled

NEVER = ("encoder-decoder", "grid", "blanks")
"""Reasons of models that no setting makes decoders of texts."""

RECIPES: dict[str, Recipe] = {
    **ARCHITECTURES,
    **RECURRENT,
    **{name: each.recipe for name, each in REFUSED.items() if each.reason not in NEVER},
}
SOFTER = dict.fromkeys(("rembert", "nemotron_h", "zamba2", "qwen3_5_moe_text", "kimi_linear"), 0.2)
"""Where rounding grows with the full spread until no pass agrees with another, not even two of stock."""

NEW = 16
LONGEST = 330
"""No drawn prompt is longer."""


def settings_of(case: Case, kind: str = "config") -> dict[str, Any]:
    """The settings of a case: `config`, `call` or `model`."""
    return {key.partition(".")[2]: value for key, value in case.items() if key.startswith(f"{kind}.")}


def configured(name: str, settings: Mapping[str, Any]) -> Recipe:
    """A recipe with other values in its configuration."""
    recipe = RECIPES[name]
    config, resolved = dict(recipe.config), None
    for path, value in settings.items():
        part, _, key = path.partition(".")
        if key:
            if part not in config:
                resolved = resolved or recipe.configuration().to_dict()
                config[part] = resolved[part]
            config[part] = {**config[part], key: value}
        else:
            config[part] = value
    return dataclasses.replace(recipe, config=config)


def made(case: Case) -> PreTrainedModel:
    """The model of a case: tiny, random, with attention that hears where units stand.

    Raises:
        Exception: There is no such model.
    """
    spread = case.get("spread") or SOFTER.get(case["decoder"], SPREAD)
    model = scaled(configured(case["decoder"], settings_of(case)).model(), spread)
    if "own" in case:
        with_own_attention(model, case["own"], case.get("own_from", 40))
    for name, value in settings_of(case, "model").items():
        setattr(model.generation_config, name, value)
    return model


def prompt(case: Case) -> dict[str, Tensor]:
    """Rows of random units that repeat themselves, with as much padding on the left as the case says."""
    generator = torch.Generator().manual_seed(case.get("text", 0))
    pads, length = case.get("pads", [0]), case["length"]
    block = torch.randint(3, 120, (len(pads), max(4, (length + 1) // 2)), generator=generator)
    mask = torch.arange(length) >= torch.tensor(pads)[:, None]
    return {"input_ids": block.repeat(1, 2)[:, :length] * mask, "attention_mask": mask.long()}


@lru_cache(maxsize=64)
def _logits(name: str, items: tuple[tuple[str, str], ...], spread: float, length: int) -> Tensor | None:
    settings = {f"config.{key}": json.loads(value) for key, value in items}
    case = {"decoder": name, "length": length, "spread": spread, **settings}
    try:
        with torch.no_grad():
            return made(case)(input_ids=prompt(case)["input_ids"], use_cache=False).logits
    except Exception:
        return None


def logits(name: str, settings: Mapping[str, Any], spread: float, length: int) -> Tensor | None:
    """What the unmodified model says to a text; None if there is no such model, or it fails."""
    return _logits(name, tuple((key, json.dumps(settings[key])) for key in sorted(settings)), spread, length)


def matter(name: str, settings: Mapping[str, Any], spread: float, length: int) -> tuple[list[str], list[str]] | None:
    """Which of the settings change numbers beside the others, and which do not; None if there is no such model."""
    whole = logits(name, settings, spread, length)
    if whole is None:
        return None
    live, idle = [], []
    for key in settings:
        without = logits(name, {other: settings[other] for other in settings if other != key}, spread, length)
        same = without is not None and without.shape == whole.shape and torch.allclose(without, whole, 1e-4, 1e-4)
        (idle if same else live).append(key)
    return live, idle


def thresholds(config: PreTrainedConfig) -> list[int]:
    """Integers of a configuration that a text's length may reach; those whose names say so more than once."""

    def inside(values: Mapping[str, Any]) -> Iterator[int]:
        for name, value in values.items():
            if isinstance(value, dict):
                yield from inside(value)
            elif isinstance(value, int) and not isinstance(value, bool) and 4 <= value <= LONGEST:
                yield from [value] * (4 if LENGTH.search(name) else 1)

    return list(inside(config.to_dict())) or [24]


def draw_decoder(dice: random.Random) -> Case:
    """A decoder, up to three settings that change numbers, and a text whose length is near a threshold.

    `idle` are settings that were asked as well and change nothing.
    """
    while True:
        name = dice.choice(list(RECIPES))
        spread = dice.choice([SOFTER.get(name, SPREAD)] * 3 + [0.2])
        known = keys(RECIPES[name].configuration())
        count = dice.choice([0, 1, 1, 2, 2, 3])
        paired = count > 1 and dice.random() < 0.6  # a length, and a switch under which it counts
        pools = [
            [*known],
            [key for key in known if LENGTH.search(key)],
            [key for key in known if _switches(known[key])],
        ]
        settings: dict[str, Any] = {}
        for turn in range(1, count + 1):
            key = dice.choice((pools[turn % 3] if paired else dice.choice(pools)) or pools[0])
            try:
                present = configured(name, settings).configuration()
                value = another(present, key, dice) if key in keys(present) else None
            except Exception:
                break
            if value is not None:
                settings[key] = value
        try:
            config = configured(name, settings).configuration()
        except Exception:
            continue
        length = _near(dice, thresholds(config))
        asked = matter(name, settings, spread, length)
        if asked is None or (count and not asked[0]):
            continue
        case: Case = {"decoder": name, "length": length, "text": dice.randrange(1000), "spread": spread}
        case |= {f"config.{key}": settings[key] for key in asked[0]}
        if asked[1]:
            case["idle"] = asked[1]
        if dice.random() < 0.1:
            case |= {"own": dice.choice(list(OWNED)), "own_from": dice.randint(4, 120)}
        return case


def _switches(value: Any) -> bool:
    """Whether a value chooses between ways to compute: flags, names, lists of them."""
    return isinstance(value, bool | str) or (isinstance(value, list) and all(isinstance(each, str) for each in value))


def _near(dice: random.Random, ends: list[int]) -> int:
    """A length of a prompt near one of the ends, or any short one."""
    if dice.random() < 0.15:
        return dice.randint(4, 60)
    end = dice.choice(ends) * dice.choice([1, 1, 1, 1, 2, 3])
    length = end + dice.choice([-NEW - 4, -NEW, -10, -6, -3, -2, -1, 0, 1, 2, 5, 20, 60])
    return min(LONGEST, length) if length >= 4 else dice.randint(4, 40)


def draw_padding(dice: random.Random, length: int) -> list[int]:
    """Columns of padding of every row: none, a single padded row, a batch, a ragged batch."""
    rows = dice.choice([1, 1, 2, 3])
    if dice.random() < 0.5:
        return [0] * rows
    return [dice.randint(0, min(length - 2, dice.choice([1, 4, 30, 200]))) for _ in range(rows)]


def decoder_space() -> Iterator[str]:
    """`decoder:` and `setting:` of every recipe."""
    for name, recipe in RECIPES.items():
        yield f"decoder:{name}"
        yield from (f"setting:{recipe.model_type}.{key}" for key in keys(recipe.configuration()))
    yield from (f"own:{own}" for own in OWNED)


def decoder_parts(case: Case) -> Iterator[str]:
    """The parts of `decoder_space` that a case covers."""
    yield f"decoder:{case['decoder']}"
    kind = RECIPES[case["decoder"]].model_type
    known = keys(RECIPES[case["decoder"]].configuration())
    asked = [*settings_of(case), *case.get("idle", [])]
    yield from (f"setting:{kind}.{key}" for key in asked if key in known)
    if "own" in case:
        yield f"own:{case['own']}"
