"""How a saved pipeline speculates: `speculation.json` beside diffusers' own files.

It holds what `Pipeline.use` was told, in names and numbers. A draft model that is not a shipped one stands beside it,
in the folder `drafter`. On loading the file is anybody's: it may name components and shipped models, and set numbers
and choices; it names no files, no hub, no code, and no rule that is for benchmarks only.
"""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from mmspec import shipped
from mmspec.files import save_text
from mmspec.hosts.loading import PREFIX
from mmspec.registry import installed
from mmspec.registry.suggest import unknown
from mmspec.registry.warn import warn

FILE = "speculation.json"
DRAFTER = "drafter"
"""The folder of a draft model."""
KEYS = ("method", "drafter", "rule", "k", "policy", "options")
LONGEST = 2**16
"""Bytes of a file that is read."""
FILES = ("model", "tokenizer", "assistant_tokenizer", "corpus")
"""Options that name files, or are live objects."""
_WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,63}")


def draft_model_of(drafter: Any) -> Any:
    """The live model that a drafter drafts with; None where it has none."""
    found = getattr(drafter, "model", None)
    found = getattr(found, "target", found)  # one that speaks another vocabulary
    model = getattr(found, "model", None)
    return model if isinstance(model, nn.Module) else None


def keep(folder: Path, told: Mapping[str, Any], drafter: Any) -> None:
    """Write what `use` was told; nothing where it was told nothing, and a warning where it cannot be written.

    Args:
        folder: That of the pipeline.
        told: Arguments of `use`.
        drafter: The live drafter.
    """
    file = folder / FILE
    file.unlink(missing_ok=True)
    wanted = {key: value for key, value in told.items() if value not in (None, {}, "auto")}
    if not wanted:
        return
    model, given = draft_model_of(drafter), wanted.get("drafter")
    if given is not None and not _is_named(given) and model is not None:
        model.save_pretrained(folder / DRAFTER)
        wanted["drafter"] = DRAFTER
    try:
        _checked(wanted, folder)
    except ValueError as error:
        warn(f"{folder} does not keep how this pipeline speculates, so say it again on loading: {error}")
        return
    save_text(file, json.dumps(wanted, indent=2) + "\n")


def restored(folder: Path, how: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of `use`: those given, behind them those that were saved; a method or drafter given replaces them all.

    Raises:
        ValueError: The file is damaged, or says what no file may.
    """
    file = folder / FILE
    if not file.is_file() or {"method", "drafter"} & how.keys():
        return dict(how)
    try:
        text = file.read_bytes()
        if len(text) > LONGEST:
            raise ValueError(f"{len(text)} bytes are too many")
        saved = _checked(json.loads(text.decode()), folder)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{file} does not say how to speculate: {error}; name a method, or delete it") from error
    if saved.get("drafter") == DRAFTER:
        saved["drafter"] = str(folder / DRAFTER)
    return {**saved.pop("options", {}), **saved, **how}


def _is_named(drafter: Any) -> bool:
    is_shipped = isinstance(drafter, str) and drafter in {PREFIX + name for name in shipped.assets()}
    return is_shipped or _is_component("drafter", drafter)


def _checked(given: Any, folder: Path) -> dict[str, Any]:
    """The same, if all of it is what a file may say."""
    if not isinstance(given, dict):
        raise ValueError("it is no table")
    for key in given:
        if key not in KEYS:
            raise ValueError(unknown("setting", str(key), KEYS))
    for key in ("method", "rule"):
        if key in given and not _is_component(key, given[key]):
            raise ValueError(f"{given[key]!r} is no {key} that is installed")
    _refuse_synthetic(given)
    k, drafter, policy = given.get("k"), given.get("drafter"), given.get("policy")
    if k is not None and (isinstance(k, bool) or not isinstance(k, int) or not 0 <= k < LONGEST):
        raise ValueError(f"k is {k!r}")
    if policy is not None and not (isinstance(policy, str) and _WORD.fullmatch(policy)):
        raise ValueError(f"the policy is {policy!r}, which has no name")
    if drafter is not None and not _is_named(drafter) and not (drafter == DRAFTER and (folder / DRAFTER).is_dir()):
        raise ValueError(f"the drafter is {drafter!r}, neither a component nor a shipped model nor saved beside it")
    options = given.get("options", {})
    if not isinstance(options, dict):
        raise ValueError(f"the options are {options!r}")
    for name, value in options.items():
        if not _WORD.fullmatch(name) or name.rpartition(".")[2] in FILES or not _is_plain(value):
            raise ValueError(f"the option {name!r} is no number and no choice")
    return dict(given)


def _is_component(kind: str, name: Any) -> bool:
    known = installed().components(kind)
    return isinstance(name, str) and any(name in (c.name, c.qualified) for c in known)


def _refuse_synthetic(given: Mapping[str, Any]) -> None:
    registry = installed()
    for kind in ("rule", "method"):
        for component in registry.components(kind):
            if component.exactness == "synthetic" and given.get(kind) in (component.name, component.qualified):
                raise ValueError(f"the {kind} {component.name} is for benchmarks only")


def _is_plain(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return all(isinstance(each, bool | int | float) for each in value)
    return isinstance(value, bool | int | float) or (isinstance(value, str) and bool(_WORD.fullmatch(value)))
