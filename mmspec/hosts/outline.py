"""A model by its config alone: enough to ask plugins about it, without its weights.

Small ones are built with random weights, on which a target's own checks run as on the real ones; large ones without
storage (device `meta`), about which only what stands in the config can be told.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoModelForCausalLM, PreTrainedModel

from mmspec import shipped
from mmspec.hosts.hub import refuse_unreachable
from mmspec.hosts.loading import PREFIX
from mmspec.hosts.remote_code import config_of, refusing_code
from mmspec.hosts.weight_files import CONFIG, refuse_config
from mmspec.registry.printable import shown

SMALL = 50_000_000
"""Parameters up to which random weights are made: a second or two on two cores."""


@dataclass(frozen=True)
class Outline:
    """What stands for a model.

    Attributes:
        model: Of the right class and shape; its weights mean nothing.
        parameters: How many it has.
        built: Whether there are weights at all, so that it can be run.
        shipped: The name under which we ship it, without `mmspec/`; or "".
    """

    model: Any
    parameters: int
    built: bool
    shipped: str = ""


def outline(name: str) -> Outline:
    """The outline of a model; of its files only `config.json` is read.

    Args:
        name: `mmspec/…` for a shipped model, a folder, or a hub name.

    Raises:
        ValueError: There is no config that transformers can read, or no class for it.
    """
    place = place_of(name)
    try:
        if (place / CONFIG).is_file():
            refuse_config(place, {})
        refuse_unreachable(str(place))
        config = config_of(str(place))
    except (OSError, ValueError) as error:
        known = ", ".join(PREFIX + known for known in shipped.assets())
        raise ValueError(
            f"no config of a model at {name!r}: neither a folder with a config.json that transformers can read, nor to "
            f"be had from the hub ({shown(error)}). Shipped: {known or 'none'}"
        ) from error
    return outlined(lambda: _made(config), place)


def place_of(name: str) -> Path:
    """The folder that a name means; there is none of a hub name."""
    return shipped.asset(name.removeprefix(PREFIX)) if name.startswith(PREFIX) else Path(name)


def outlined(make: Callable[[], torch.nn.Module], place: Path) -> Outline:
    """The outline of a model.

    Args:
        make: Makes it, with random weights.
        place: The folder that it comes from, or that of its whole pipeline.

    Raises:
        ValueError: Its config is damaged.
    """
    with refusing_code(f"the model in {place}"), torch.device("meta"):
        model = make()
    parameters = sum(weights.numel() for weights in model.parameters())
    built = parameters <= SMALL
    if built:
        with torch.random.fork_rng(devices=[]):
            model = make()
    return Outline(model.eval(), parameters, built, _shipped(place))


def _made(config: Any) -> PreTrainedModel:
    """A causal language model where transformers has one; else what the config says that it was."""
    try:
        return AutoModelForCausalLM.from_config(config, trust_remote_code=False)
    except ValueError:
        kinds = [getattr(transformers, kind, None) for kind in config.architectures or ()]
        for kind in filter(None, kinds):
            return kind(config)
        raise


def _shipped(place: Path) -> str:
    known = {path.resolve(): name for name, path in shipped.assets().items()}
    return known.get(place.resolve(), "")
