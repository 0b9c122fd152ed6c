"""Loading transformers models by name: shipped ones without a network, others as `from_pretrained` does.

Weights are safetensors. Pickles and code that comes with a model are refused.
"""

from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from mmspec import shipped

PREFIX = "mmspec/"


def load_model(name: str, device: str = "cpu", dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    """A causal language model, in evaluation mode.

    Args:
        name: `mmspec/…` for a shipped model, a folder, or a hub name.
        device: Where to put it.
        dtype: Of the weights. Equality with unmodified decoding is promised in float32.

    Raises:
        ValueError: No such model; its weights are damaged, or a pickle.
    """
    place = locate(name)
    try:
        model, info = AutoModelForCausalLM.from_pretrained(
            place, dtype=dtype, use_safetensors=True, output_loading_info=True
        )
    except SafetensorError as error:
        raise ValueError(f"the weights of {name!r} are damaged or truncated: {error}") from error
    except (OSError, RuntimeError) as error:
        raise ValueError(f"the model {name!r} cannot be loaded: {error}") from error
    if info["missing_keys"]:  # transformers would go on with random numbers in their place
        raise ValueError(f"the weights of {name!r} are not complete: {', '.join(sorted(info['missing_keys'])[:3])} …")
    return model.to(device).eval()


def load_tokenizer(name: str) -> Any:
    """The tokenizer that belongs to a model.

    Raises:
        ValueError: No such model, or it comes without a tokenizer that can be read.
    """
    place = name if Path(name).is_dir() else locate(name)  # a tokenizer may be stored without weights
    try:
        return AutoTokenizer.from_pretrained(place)
    except (OSError, ValueError) as error:
        raise ValueError(f"{name!r} has no tokenizer that can be read (tokenizer.json)") from error


def locate(name: str) -> str:
    """The folder of a model, or a hub name; refuses what cannot be loaded before anything is.

    Raises:
        ValueError: No such model (nearest names), or its weights are a pickle.
    """
    if name.startswith(PREFIX):
        return str(shipped.asset(name.removeprefix(PREFIX)))
    folder = Path(name)
    if folder.is_dir():
        _refuse_pickles(folder)
        return name
    try:
        AutoConfig.from_pretrained(name)
    except (OSError, ValueError) as error:
        known = ", ".join(PREFIX + known for known in shipped.assets())
        raise ValueError(
            f"no model {name!r}: neither a folder here nor to be had from the hub. Shipped: {known or 'none'}"
        ) from error
    return name


def _refuse_pickles(folder: Path) -> None:
    if any(folder.glob("*.safetensors")):
        return
    pickles = [path.name for pattern in ("*.bin", "*.pt", "*.pth", "*.ckpt") for path in folder.glob(pattern)]
    if pickles:
        raise ValueError(
            f"{folder} has its weights as a pickle ({pickles[0]}), which can run code; "
            "convert them once with model.save_pretrained(..., safe_serialization=True)"
        )
    raise ValueError(f"{folder} has no *.safetensors file")
