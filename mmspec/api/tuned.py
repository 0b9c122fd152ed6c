"""Results of `mmspec tune` for a model on this machine, which `auto` takes from then on.

A file of it holds names and numbers: a method that is installed and gives plain decoding's output, a shipped head, and
numbers of the method's options. So a stranger's file can cost time, and cannot change an output.
"""

import hashlib
import json
import os
import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
import transformers

from mmspec import packaged, shipped
from mmspec.files import save_text
from mmspec.hosts.devices import device_of
from mmspec.hosts.loading import PREFIX
from mmspec.registry import installed, pair
from mmspec.registry.fields import EXACTNESS, NAME
from mmspec.registry.options import build
from mmspec.registry.printable import shown
from mmspec.registry.warn import warn
from mmspec.untrusted import read_json

BESIDE = "mmspec_tuned.json"  # the file's name in a model's own folder
MOST_K, SAMPLED = 512, 64  # the largest k; and how many numbers of every weight tell a model from others of its shape


@dataclass(frozen=True)
class Tuned:
    """The fastest method that was found."""

    key: str  # of the model, its device and the versions (`key_of`)
    method: str
    drafter: str | None = None  # a shipped head, `mmspec/…`
    k: int | None = None
    policy: str | None = None
    compile: bool = False
    options: Mapping[str, float] = field(default_factory=dict)  # of the method's parts
    speedup: float = 1.0  # against plain decoding

    def __post_init__(self) -> None:
        named = [self.method, *([] if self.policy is None else [self.policy])]
        if not all(isinstance(name, str) and NAME.fullmatch(name) for name in named):
            raise ValueError(f"method and policy are names, not {shown(repr(named))}")
        if self.drafter is not None and not (isinstance(self.drafter, str) and self.drafter.startswith(PREFIX)):
            raise ValueError(f"drafter is the name of a shipped head, not {shown(repr(self.drafter))}")
        if self.k is not None and not (type(self.k) is int and 1 <= self.k <= MOST_K):
            raise ValueError(f"k is a number from 1 to {MOST_K}, not {shown(repr(self.k))}")
        if type(self.compile) is not bool or not isinstance(self.speedup, int | float):
            raise ValueError("compile is true or false, and speedup a number")
        own = self.options.items() if isinstance(self.options, Mapping) else [(None, None)]
        if not all(isinstance(name, str) and name.isidentifier() and type(n) in (int, float, bool) for name, n in own):
            raise ValueError(f"options are numbers by their names, not {shown(repr(self.options))}")


def origin(model: Any) -> Path:
    """Where a live model says that it was loaded from: a folder, or a name on the hub; "." if it does not say."""
    return Path(getattr(model.config, "_name_or_path", "") or "")


def key_of(model: Any) -> str:
    """The key of a measurement: the model's weights, their dtype and device, the threads, the libraries."""
    told = hashlib.sha256()
    for name, weight in sorted(model.named_parameters()):
        told.update(f"{name} {tuple(weight.shape)} {weight.dtype}".encode())
        # A quantised tensor may not be sliced, and an offloaded weight is not here.
        if type(weight.data) is torch.Tensor and weight.numel() and not weight.is_meta:
            few = weight.data.flatten()[:: -(-weight.numel() // SAMPLED)]
            told.update(few.to("cpu", torch.float64).numpy().tobytes())
    device = device_of(model)
    cuda = device.type == "cuda"
    where = torch.cuda.get_device_name(device) if cuda else f"{platform.machine()}, {torch.get_num_threads()} threads"
    told.update(f"{device.type} {where} {torch.__version__} {transformers.__version__}".encode())
    return told.hexdigest()[:32]


def write(tuned: Tuned, folder: Path | None = None) -> Path:
    """Write what was found into the user's cache, or into a model's folder; returns the file."""
    file = _cached(tuned.key) if folder is None else folder / BESIDE
    file.parent.mkdir(parents=True, exist_ok=True)
    save_text(file, json.dumps(asdict(tuned), indent=2) + "\n")
    return file


def tuned_for(model: Any) -> Tuned | None:
    """The result for a live model; None if there is none, or for other weights or another machine. A file that cannot
    be read is passed over with a warning.
    """
    beside = origin(model) / BESIDE
    if not os.path.isfile(beside) and not _cached("").parent.is_dir():
        return None
    key = key_of(model)
    for file in (beside, _cached(key)):
        if os.path.isfile(file):  # a model's name may be one that no file can have
            try:
                found = Tuned(**read_json(file))
                _refuse_unfit(found)
            except (TypeError, ValueError) as error:
                warn(f"{shown(file)} is no file of mmspec tune, and has no effect: {shown(error)}")
                continue
            if found.key == key:
                return found
    return None


def _refuse_unfit(found: Tuned) -> None:
    """Refuse a method that is not installed or changes outputs, and options or a policy that it does not have."""
    parts = pair(installed(), found.method)
    if parts.exactness != EXACTNESS[0]:
        raise ValueError(f"the method {found.method!r} is {parts.exactness}; auto takes none that changes outputs")
    if found.policy is not None:
        installed().get("policy", found.policy)
    declared = parts.drafter.load_options() if parts.drafter else None
    head = {}
    if found.drafter is not None:
        shipped.asset(found.drafter.removeprefix(PREFIX))
        head = {"model": found.drafter}
    if declared is not None:
        build(declared, {**found.options, **head}, found.method)
    elif found.options or head:
        raise ValueError(f"the method {found.method!r} has no options")


def _cached(key: str) -> Path:
    return packaged.cache() / "tuned" / f"{key}.json"
