"""A model built from its config alone, so that plugins can be asked about it without its weights.

A small model gets random weights, so that a target's checks can run it. A large one is built without storage (device
`meta`), so that only its config and its module tree can be checked.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from huggingface_hub import get_hf_file_metadata, hf_hub_url, try_to_load_from_cache
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, OfflineModeIsEnabled
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from mmspec import packaged, shipped
from mmspec.hosts.loading import PREFIX
from mmspec.hosts.remote_code import read_auto, refusing_code
from mmspec.hosts.weight_files import CONFIG, refuse_config
from mmspec.registry.printable import shown
from mmspec.threads import asked

SMALL = 50_000_000  # the most parameters of a model that gets random weights: a second or two on two cores


@dataclass(frozen=True)
class Outline:
    """A model without its real weights."""

    model: Any  # the model, of the right class and shape
    parameters: int  # the number of its parameters
    built: bool  # whether it has (random) weights, so that it can be run
    known: str = ""  # the name under which mmspec ships or fetches the model; "" if it does neither


def outline(name: str) -> Outline:
    """The outline of a model by its name, as in `load_model`; only its `config.json` is read."""
    place = place_of(name)
    try:
        if (place / CONFIG).is_file():
            refuse_config(place, {})
        refuse_unreachable(str(place))
        config = read_auto(AutoConfig, str(place))
    except (OSError, ValueError) as error:
        known = ", ".join(PREFIX + known for known in shipped.assets())
        raise ValueError(
            f"no config of a model at {name!r}: neither a folder with a config.json that transformers can read, nor to "
            f"be had from the hub ({shown(error)}). Shipped: {known or 'none'}"
        ) from error
    return outlined(lambda: _from_config(config), place)


def place_of(name: str) -> Path:
    """The folder that a name means; for a hub name it does not exist."""
    if name.startswith(PREFIX):
        return shipped.asset(name.removeprefix(PREFIX))
    return packaged.folder_of(name) or Path(name)


def outlined(make: Callable[[], torch.nn.Module], place: Path) -> Outline:
    """The outline of a model that `make` builds with random weights; `place` is its folder, or the folder of its
    pipeline.
    """
    with refusing_code(f"the model in {place}"), torch.device("meta"):
        model = make()
    parameters = sum(weights.numel() for weights in model.parameters())
    built = parameters <= SMALL
    if built:
        with torch.random.fork_rng(devices=[]):
            model = make()
    return Outline(model.eval(), parameters, built, shipped.known_as(place))


def _from_config(config: Any) -> PreTrainedModel:
    """The class that the config names, if it generates; else transformers' causal language model for the config."""
    for name in config.architectures or ():
        kind: Any = getattr(transformers, name, None)
        known = isinstance(kind, type) and issubclass(kind, PreTrainedModel)
        if known and kind.can_generate():
            return kind._from_config(config)
    return AutoModelForCausalLM.from_config(config, trust_remote_code=False)


SECONDS = 1.5
"""The seconds that the hub may take to answer, DNS lookup included; its own client retries six times with pauses."""


def refuse_unreachable(name: str) -> None:
    """Refuse a hub name, and no existing path, whose config is neither in the local cache nor, at one attempt, on the
    hub.
    """
    if os.path.exists(name):
        return
    try:
        if not isinstance(try_to_load_from_cache(name, CONFIG), str):
            # In a thread, which may be left behind: looking up the hub's address has no timeout.
            asked(lambda: get_hf_file_metadata(hf_hub_url(name, CONFIG), timeout=SECONDS), "hub").result(SECONDS)
    except HFValidationError as error:
        raise ValueError("a name there is written organisation/name") from error
    except OfflineModeIsEnabled as error:
        raise ValueError("HF_HUB_OFFLINE is set, and it was never loaded here") from error
    except HfHubHTTPError as error:
        raise ValueError(f"it says: {str(error).splitlines()[0]}") from error
    except TimeoutError as error:
        raise ValueError(f"it does not answer within {SECONDS} s") from error
    except Exception as error:  # the hub's client may use one of several HTTP libraries
        raise ValueError(f"it cannot be reached: {error}") from error
