"""The method of a saved pipeline: `speculation.json` beside diffusers' own files.

The file holds the arguments of `Pipeline.use`, as names and numbers. A draft model that is not shipped is saved beside
it, in the folder `drafter`. On loading the file is not trusted: it may name components and shipped models, and set
numbers and choices; it cannot name files, hub models, code, or a rule that is for benchmarks only.
"""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from mmspec import shipped
from mmspec.core.capabilities import DraftsWithModel, RunsModel, Wrapper
from mmspec.core.compile.captured import checked_compile
from mmspec.core.promise import NAMES
from mmspec.files import save_text
from mmspec.hosts.loading import PREFIX
from mmspec.registry import installed
from mmspec.registry.suggest import unknown
from mmspec.registry.warn import warn
from mmspec.untrusted import read_json

FILE = "speculation.json"
DRAFTER = "drafter"  # the folder of a saved draft model
KEYS = ("method", "drafter", "rule", "k", "policy", "shape", "compile", "options")
LONGEST = 2**16  # most bytes of the file
FILES = ("model", "tokenizer", "assistant_tokenizer", "corpus")
"""Options whose values are files or live objects: the file cannot set them."""
_WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,63}")


def draft_model_of(drafter: Any) -> Any:
    """The live model that a drafter drafts with; None where it has none."""
    target: Any = drafter.model if isinstance(drafter, DraftsWithModel) else None
    if isinstance(target, Wrapper):  # one with another vocabulary is wrapped
        target = target.target
    return target.model if isinstance(target, RunsModel) and isinstance(target.model, nn.Module) else None


def save_method(folder: Path, arguments: Mapping[str, Any], drafter: Any) -> None:
    """Write the arguments of `use`: nothing if all are defaults, and a warning if they cannot be written."""
    file = folder / FILE
    file.unlink(missing_ok=True)
    chosen = {
        key: value for key, value in arguments.items() if value not in (None, {}) and (key, value) != ("method", "auto")
    }
    if not chosen:
        return
    model, named = draft_model_of(drafter), chosen.get("drafter")
    if named is not None and not _is_named(named) and model is not None:
        model.save_pretrained(folder / DRAFTER)
        chosen["drafter"] = DRAFTER
    try:
        _checked(chosen, folder)
    except ValueError as error:
        warn(f"{folder} does not keep how this pipeline speculates, so say it again on loading: {error}")
        return
    save_text(file, json.dumps(chosen, indent=2) + "\n")


def checked_method(folder: Path) -> dict[str, Any]:
    """The saved arguments of `use`, if any; refuses a file that is damaged, or sets what it may not."""
    file = folder / FILE
    if not file.is_file():
        return {}
    try:
        saved = _checked(read_json(file, LONGEST), folder)
    except ValueError as error:
        raise ValueError(f"{file} does not say how to speculate: {error}; name a method, or delete it") from error
    if saved.get("drafter") == DRAFTER:
        saved["drafter"] = str(folder / DRAFTER)
    return {**saved.pop("options", {}), **saved}


def _is_named(drafter: Any) -> bool:
    """True if a drafter is a name that a file may have."""
    is_shipped = isinstance(drafter, str) and drafter in {PREFIX + name for name in shipped.assets()}
    return is_shipped or _is_component("drafter", drafter)


def _checked(settings: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """The contents of a file, if a file may have them."""
    for key in settings:
        if key not in KEYS:
            raise ValueError(unknown("setting", str(key), KEYS))
    for key in ("method", "rule"):
        if key in settings and not _is_component(key, settings[key]):
            raise ValueError(f"{settings[key]!r} is no {key} that is installed")
    _refuse_synthetic(settings)
    k, drafter, policy = settings.get("k"), settings.get("drafter"), settings.get("policy")
    if k is not None and (isinstance(k, bool) or not isinstance(k, int) or not 0 <= k < LONGEST):
        raise ValueError(f"k is {k!r}")
    _refuse_shape(settings.get("shape"))
    checked_compile(settings.get("compile"))
    if policy is not None and not (isinstance(policy, str) and _WORD.fullmatch(policy)):
        raise ValueError(f"the policy is {policy!r}, which has no name")
    if drafter is not None and not _is_named(drafter) and not (drafter == DRAFTER and (folder / DRAFTER).is_dir()):
        raise ValueError(f"the drafter is {drafter!r}, neither a component nor a shipped model nor saved beside it")
    options = settings.get("options", {})
    if not isinstance(options, dict):
        raise ValueError(f"the options are {options!r}")
    for name, value in options.items():
        if not _WORD.fullmatch(name) or name.rpartition(".")[2] in FILES or not _is_plain(value):
            raise ValueError(f"the option {name!r} is no number and no choice")
    return dict(settings)


def _refuse_shape(shape: Any) -> None:
    number = isinstance(shape, int) and not isinstance(shape, bool) and 1 <= shape < LONGEST
    if shape is not None and shape not in NAMES and not number:
        raise ValueError(f"the shape is {shape!r}, neither {' nor '.join(NAMES)} nor a number of nodes")


def _is_component(kind: str, name: Any) -> bool:
    known = installed().components(kind)
    return isinstance(name, str) and any(name in (c.name, c.qualified) for c in known)


def _refuse_synthetic(settings: Mapping[str, Any]) -> None:
    registry = installed()
    for kind in ("rule", "method"):
        for component in registry.components(kind):
            if component.exactness == "synthetic" and settings.get(kind) in (component.name, component.qualified):
                raise ValueError(f"the {kind} {component.name} is for benchmarks only")


def _is_plain(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return all(isinstance(each, bool | int | float) for each in value)
    return isinstance(value, bool | int | float) or (isinstance(value, str) and bool(_WORD.fullmatch(value)))
