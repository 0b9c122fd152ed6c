"""Drawing of decoders at any setting: the zoo's recipes, keys of their configurations that change numbers, texts.

Settings stand in a case as `config.<key>`, arguments of `generate` as `call.<name>`, and values of the model's own
generation configuration as `model.<name>`.
"""

import dataclasses
import json
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedConfig, PreTrainedModel

from tests.draws.claim import Case, Dice
from tests.draws.owned import OWNED, with_own_attention
from tests.draws.settings import LENGTH, another, in_reach, keys
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
STATES, SHORT = 120, 40
"""Nor one for layers with states, whose unmodified passes are slow; and a text that any context holds."""
TRIES = 8
"""Values that are tried of a key until one changes numbers."""


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


def matter(
    name: str, settings: Mapping[str, Any], spread: float, length: int, some: Iterable[str] | None = None
) -> tuple[list[str], list[str]] | None:
    """Which of the settings, or of `some`, change numbers beside the others, and which do not; None if there is no such
    model.
    """
    whole = logits(name, settings, spread, length)
    if whole is None:
        return None
    live, idle = [], []
    for key in settings if some is None else some:
        without = logits(name, {other: settings[other] for other in settings if other != key}, spread, length)
        same = without is not None and without.shape == whole.shape and torch.allclose(without, whole, 1e-4, 1e-4)
        (idle if same else live).append(key)
    return live, idle


def thresholds(config: PreTrainedConfig, own: Iterable[Any]) -> list[int]:
    """Integers of a configuration that a text's length may reach, more than once those whose names say so, and most
    often those of the `own` settings of a case.
    """

    def inside(values: Mapping[str, Any]) -> Iterator[int]:
        for name, value in values.items():
            if isinstance(value, dict):
                yield from inside(value)
            elif isinstance(value, int) and not isinstance(value, bool) and 4 <= value <= LONGEST:
                yield from [value] * (12 if value in given else 4 if LENGTH.search(name) else 1)

    given = {value for value in own if type(value) is int}
    return list(inside(config.to_dict())) or [24]


def draw_decoder(dice: Dice) -> Case:
    """A decoder, up to three settings that change numbers of long texts, and a text whose length is near a threshold.

    Decoders are dealt, and keys of each: in two of three turns a key with up to two others, in the third a switch with
    all large lengths in reach of a text. A text is drawn around the length from which a setting changes numbers, which
    is asked of the unmodified model. `idle` are settings that were asked as well and change nothing.
    """
    name, turn = dice.dealt(list(RECIPES), dice.number), dice.number // len(RECIPES)
    spread = dice.choice([SOFTER.get(name, SPREAD)] * 3 + [0.2])
    known = keys(RECIPES[name].configuration())
    switches = [key for key in known if _switches(known[key])]
    place, kind = divmod(turn, 3)
    small = kind == 2
    more = [*switches, *(key for key in known if LENGTH.search(key))]
    first = dice.dealt([*switches, ""], place) if small else dice.dealt([*known, *more], 2 * place + kind)
    found: Case = {"decoder": name, "length": dice.randint(4, 60), "text": dice.randrange(1000), "spread": spread}
    for attempt in range(TRIES):
        if attempt >= TRIES // 2 and not small:  # this one changes nothing
            first = dice.choice([*known])
        settings = _with(dice, name, in_reach(known, dice), [first]) if small else _beside(dice, name, first)
        lengths = [key for key in settings if LENGTH.search(key)] if small else []
        if small and not _any_live(name, settings, spread, lengths):
            settings = _under_a_switch(dice, name, settings, spread, lengths)
        asked = matter(name, settings, spread, longest(name)) or matter(name, settings, spread, SHORT)
        if asked is None:
            continue
        live = [key for key in lengths or [first] if key in asked[0]]
        ends = thresholds(configured(name, settings).configuration(), settings.values())
        begins = [shortest(name, settings, spread, dice.choice(live))] if live else []
        length = _near(dice, begins if begins > [4] and dice.random() < 0.7 else ends, longest(name))
        found = {key: found[key] for key in ("decoder", "text", "spread")} | {"length": length}
        found |= {f"config.{key}": settings[key] for key in asked[0]} | ({"idle": asked[1]} if asked[1] else {})
        if live or not (lengths or first):
            break
    if dice.random() < 0.1:
        found |= {"own": dice.choice(list(OWNED)), "own_from": dice.randint(4, 120)}
    return found


def _with(dice: Dice, name: str, settings: Mapping[str, Any], others: Iterable[str]) -> dict[str, Any]:
    """Settings with values of other keys, as far as there is such a configuration."""
    found = dict(settings)
    for key in others:
        try:
            present = configured(name, found).configuration()
            value = another(present, key, dice) if key in keys(present) else None
        except Exception:
            break
        found |= {} if value is None else {key: value}
    return found


def _beside(dice: Dice, name: str, first: str) -> dict[str, Any]:
    """Values of a key and of up to two others: of any kind, lengths, switches."""
    known = keys(RECIPES[name].configuration())
    pools = [[*known], [key for key in known if LENGTH.search(key)], [key for key in known if _switches(known[key])]]
    others = [dice.choice(dice.choice(pools) or pools[0]) for _ in range(dice.choice([0, 0, 1, 1, 2]))]
    return _with(dice, name, {}, [first, *others])


def _under_a_switch(
    dice: Dice, name: str, settings: Mapping[str, Any], spread: float, lengths: Sequence[str]
) -> dict[str, Any]:
    """Settings with the first switch under which one of the lengths changes numbers; as they are if there is none."""
    known = keys(RECIPES[name].configuration())
    for key in dice.sample(list(known), len(known)) if lengths else []:
        found = _with(dice, name, settings, [key]) if _switches(known[key]) and key not in settings else {}
        if found and _any_live(name, found, spread, lengths):
            return found
    return dict(settings)


def _any_live(name: str, settings: Mapping[str, Any], spread: float, some: Iterable[str]) -> bool:
    asked = matter(name, settings, spread, longest(name))
    return asked is not None and any(key in asked[0] for key in some)


def shortest(name: str, settings: Mapping[str, Any], spread: float, key: str) -> int:
    """Units of about the shortest text in which a setting that changes numbers of the longest one changes any."""
    short, long = 3, longest(name)
    while long - short > 1:
        middle = (short + long) // 2
        asked = matter(name, settings, spread, middle, [key])
        short, long = (short, middle) if asked and asked[0] else (middle, long)
    return long


def _switches(value: Any) -> bool:
    """Whether a value chooses between ways to compute: flags, names, lists of them."""
    return isinstance(value, bool | str) or (isinstance(value, list) and all(isinstance(each, str) for each in value))


def longest(name: str) -> int:
    """The longest prompt that is drawn for a decoder."""
    return STATES if name in RECURRENT else LONGEST


def _near(dice: random.Random, ends: list[int], most: int) -> int:
    """A length of a prompt near one of the ends, or any up to the most."""
    if dice.random() < 0.2:
        return dice.choice([dice.randint(4, 60), dice.randint(60, most)])
    end = dice.choice(ends) * dice.choice([1, 1, 1, 1, 2, 3])
    below = -dice.randint(NEW, 80)
    length = end + dice.choice([*[below] * 6, -NEW - 4, -NEW, -10, -6, -3, -2, -1, 0, 1, 2, 5, 20, 60])
    return min(most, length) if length >= 4 else dice.randint(4, 40)


def draw_padding(dice: random.Random, length: int) -> list[int]:
    """Columns of padding of every row: none, a single padded row, a batch, a ragged batch."""
    rows = dice.choice([1, 1, 2, 3])
    if dice.random() < 0.3:
        return [0] * rows
    most = dice.choice([1, 4, 30, 200])
    pads = [dice.randint(0, min(length - 2, most)) for _ in range(rows)]
    if dice.random() < 0.3:  # a row of little else: what padding does to a convolution ends soon behind it
        pads[0] = length - dice.randint(2, min(6, length))
    return pads


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
