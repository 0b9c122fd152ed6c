"""`mmspec methods --for MODEL`: what fits a model, why the rest does not, what was measured."""

import dataclasses
import json as jsonlib
import warnings
from collections import Counter
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import torch
import typer

from mmspec import shipped
from mmspec.api.build import decoder_for
from mmspec.api.plan import AUTO, PLAIN, choose
from mmspec.api.stored import outline_of
from mmspec.hosts.loading import PREFIX
from mmspec.hosts.model_info import ModelInfo
from mmspec.hosts.outline import Outline
from mmspec.hosts.target import TransformersTarget
from mmspec.registry import MethodSpec, Pairing, Registry, TargetSpec, installed, pair
from mmspec.registry.fields import EXACTNESS
from mmspec.registry.matching import HOME
from mmspec.registry.options import build
from mmspec.report.result import Result
from mmspec.report.terminal import line, table, terminal
from mmspec.report.trust import load_result

NOTHING, HEAD, MODEL = WAYS = ("nothing", "a trained head: drafter=", "a draft model: drafter=")
FIRST = 3  # methods of each of the ways that the short list has


@dataclass(frozen=True)
class Expected:
    """The figures of a method in a benchmark."""

    setting: str  # what was decoded and how
    acceptance_length: float  # units per pass of the target
    speedup: float  # against plain decoding


@dataclass(frozen=True)
class Fit:
    """One method, for one model."""

    method: str
    owner: str  # the plugin that brings the method
    exactness: str  # what the method promises
    fits: bool  # whether the method can be used
    why: str = ""  # why it cannot be used; of `auto`, what it chooses and why
    options: list[str] = field(default_factory=list)  # keys of the options that the method takes
    required: list[str] = field(default_factory=list)  # keys of options that have to be given
    needs: str = NOTHING  # what it drafts with: one of `WAYS`, and the name of a head that ships
    # What was measured, setting by setting; empty where nothing was
    expected: list[Expected] = field(default_factory=list)


@dataclass(frozen=True)
class Fits:
    """All methods, for one model."""

    model: str  # the model's name, as the user wrote it
    parameters: int  # the model's number of parameters
    target: str  # the target that takes the model
    refused: str  # why the target does not take the model after all; "" where it does
    checked: bool  # whether target and drafters were tried on random weights; if not, only the config was read
    measured: str  # the device on which the numbers were measured; "" where there are none
    methods: list[Fit]  # every method that is installed, and every adapter


def show(name: str, every: bool, json: bool) -> None:
    """Print what fits a model: what to try first, or `every` method with the reasons of those that do not fit."""
    found = fits_of(installed(), name)
    if json:
        typer.echo(jsonlib.dumps(asdict(found), indent=2))
    else:
        _print(found, every)


def fits_of(registry: Registry, name: str) -> Fits:
    """The methods that fit a model, of which only the config is read: a shipped model or pipeline, a folder of one, or
    a hub name of a model.
    """
    seen = outline_of(name)
    target = registry.target_for(seen.model)
    if target is None:
        kind = seen.model.config.model_type
        raise ValueError(f"no installed plugin has a target for {kind!r}; `mmspec plugins` lists what is installed")
    refused = _refusal(target, seen)
    results = _measured(seen.known)
    fitted = [_fit(registry, method, target, seen, refused, results) for method in registry.components("method")]
    fitted += [Fit(a.name, a.owner, a.exactness, False, a.summary) for a in registry.components("adapter")]
    heads = {method: f"{HEAD}{PREFIX}{head}" for head, method in shipped.heads_of(seen.known).items()}
    fitted = [replace(fit, needs=heads.get(fit.method, fit.needs)) for fit in fitted]
    fitted.sort(key=lambda fit: (not fit.fits, fit.method, fit.owner))
    device = results[0].device if results else ""
    return Fits(name, seen.parameters, target.qualified, refused, seen.built, device, fitted)


def _refusal(target: TargetSpec, seen: Outline) -> str:
    """The reason why the target does not take the model, as far as it can be told without the weights."""
    factory = target.load()
    try:
        if seen.built:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of how it runs, which is not the question
                factory(seen.model)
        elif factory is TransformersTarget:
            _refuse_slots(ModelInfo.of(seen.model).config)
    except ValueError as error:
        return str(error)
    return ""


def _refuse_slots(config: Any) -> None:
    """The self-check's likely findings of a model that is too large to try, as far as its config tells."""
    if config.model_type in ("bloom", "mpt") or getattr(config, "alibi", False):
        raise ValueError(f"{config.model_type!r} measures distance by cache slot (ALiBi), which a tree breaks")


def _fit(
    registry: Registry, method: MethodSpec, target: TargetSpec, seen: Outline, refused: str, results: list[Result]
) -> Fit:
    ours, here = method.qualified == f"{HOME}:{AUTO}", "cuda" if torch.cuda.is_available() else "cpu"
    chosen = choose(seen.model, target, draft_model=False, rule=False, device=here) if ours else None
    if chosen and chosen.method != AUTO:
        own = registry.get("method", chosen.method, (target.owner, HOME))
        fit = _fit(registry, own, target, seen, refused, results)
        expected = _expected(results, AUTO) or fit.expected
        return replace(fit, method=AUTO, owner=method.owner, why=fit.why or chosen.why, expected=expected)
    try:
        parts = pair(registry, method, offers=target.offers)
        names, required, own = _keys(parts)
    except (ValueError, ImportError) as error:
        return Fit(method.name, method.owner, str(method.exactness), False, str(error))
    missing = parts.missing(target.offers)
    why = f"{parts.says(missing)}, which the target does not offer" if missing else ""
    why = why or (f"the target refuses the model: {refused}" if refused else "")
    note = ""
    if not why and parts.drafter and parts.drafter.reads:  # without a head there is nothing to try
        note = "drafts with a trained head; it fits if it was trained for this model"
    elif not why and seen.built:
        alone = sum(other.name == method.name for other in registry.components("method")) == 1
        why, note = _tried(method.name if alone else method.qualified, seen, required)
    elif not why and not required:
        why = _made(parts)
        note = "drafts with further layers of the model's checkpoint; it fits if it has any" if own else ""
    expected = _expected(results, method.name) if not why else []
    needs = HEAD if own or (required and "hidden" in parts.needs) else MODEL if required else NOTHING
    return Fit(method.name, method.owner, parts.exactness, not why, why or note, names, required, needs, expected)


def _keys(parts: Pairing) -> tuple[list[str], list[str], bool]:
    """Option keys of drafter and rule; those that no default serves: a model or a head to draft with; whether the
    target's own checkpoint serves for one.
    """
    declared = [part.load_options() for part in (parts.drafter, parts.rule) if part]
    fields = [f for options in declared if options for f in dataclasses.fields(options)]
    asking = [f for f in fields if f.name == "model" and f.default is None]
    required = [f.name for f in asking if not f.metadata.get("optional")]
    return [f.name for f in fields], required, len(required) < len(asking)


def _made(parts: Pairing) -> str:
    """The reason why drafter or rule cannot be made of their defaults, as one that wants texts; "" if they can be."""
    try:
        for part in filter(None, (parts.drafter, parts.rule)):
            declared = part.load_options()
            keys = {field.name for field in dataclasses.fields(declared)} if declared else set()
            given = {key: value for key, value in parts.method.defaults.items() if key in keys}
            part.load()(*([build(declared, given, part.name)] if declared else []))
    except ValueError as error:
        return str(error)
    return ""


def _tried(method: str, seen: Outline, required: list[str]) -> tuple[str, str]:
    """The words of `mmspec.enable`: a refusal, or the reason of its choice."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            # The model stands in for its own draft model, too: same words, and it fits if a smaller one would.
            decoder = decoder_for(seen.model, method, options=dict.fromkeys(required, seen.model))
        except TypeError:  # a trained head is wanted, for which no model stands in: it fits if one is given
            if not required:
                raise
            return "", ""
        except (ValueError, ImportError) as error:
            return str(error), ""
    return "", decoder.why


def _measured(name: str) -> list[Result]:
    """The benchmarks of a shipped or fetched model."""
    known = name.removeprefix(PREFIX)
    files = [shipped.folder("model_cards") / f"{known}{end}" for end in shipped.BENCHES] if name else []
    return [load_result(file) for file in files if file.is_file()]


def _expected(results: list[Result], method: str) -> list[Expected]:
    """The rows of the first benchmark that has the method."""
    found = ([row for row in result.rows if row.method == method] for result in results)
    rows = next(filter(None, found), [])
    return [
        Expected(row.setting, row.acceptance_length, row.speedup)
        for row in rows
        if (row.mode, row.batch) == ("real", 1)
    ]


def first(found: Fits, order: list[str]) -> list[Fit]:
    """The methods to try first: exact ones of the target's own plugin and of the home of all, without plain decoding.

    Those that need nothing come first, then those that need a head, then those that need a draft model; the fastest
    that were measured before the others, heads that ship for the model before those that the user has to find; the
    rest keep the `order` in which their plugin lists them.
    """
    owner, _, _ = found.target.partition(":")
    near = [fit for fit in found.methods if fit.fits and fit.owner in (owner, HOME) and fit.method not in (PLAIN, AUTO)]
    fits = [fit for fit in near if fit.exactness == EXACTNESS[0]]
    fits.sort(key=lambda fit: (fit.needs in WAYS, order.index(fit.method)))
    fits.sort(key=lambda fit: -max((e.speedup for e in fit.expected), default=0.0))
    return [fit for way in WAYS for fit in [fit for fit in fits if fit.needs.startswith(way)][:FIRST]]


def _print(found: Fits, every: bool) -> None:
    console = terminal()
    auto = next((fit for fit in found.methods if fit.method == AUTO and fit.fits), None)
    if auto is not None and auto.why:
        known = f"; {'; '.join(_numbers(auto).splitlines())}" if auto.expected else ""
        line(console, f"auto takes {auto.why}{known}; measure it here: mmspec tune {found.model}")
    line(console, f"{found.model}: {found.parameters:,} parameters; target {found.target}\n")
    if found.refused:
        line(console, f"No method fits: {found.refused}")
        return
    if not every:
        listed = first(found, [method.name for method in installed().components("method")])
        rows = [(fit.method, _numbers(fit), fit.needs) for fit in listed]
        table(console, ("try first", "measured", "needs"), rows, whole={"try first"})
        console.print()
        more = sum(fit.fits for fit in found.methods) - len(listed)
        line(console, f"{more} more methods fit: mmspec methods --for {found.model} --all")
        for note in _facts(found):
            line(console, note)
        return
    names = Counter(fit.method for fit in found.methods)
    shown = [(f.method if names[f.method] == 1 else f"{f.owner}:{f.method}", f) for f in found.methods]
    fitting = [(name, fit.exactness, _numbers(fit), _options(fit)) for name, fit in shown if fit.fits]
    other = [(name, fit.why) for name, fit in shown if not fit.fits]
    table(console, ("method", "exactness", "measured", "options beside k, policy"), fitting, whole={"method"})
    if other:
        console.print()
        table(console, ("does not fit", "because"), other, whole={"does not fit"})
    for note in _notes(found):
        line(console, f"\n{note}")


def _numbers(fit: Fit) -> str:
    numbers = (f"{e.setting}: {e.acceptance_length:.2f} units a pass, {e.speedup:.2f} ×" for e in fit.expected)
    return "\n".join(numbers) or "not measured"


def _options(fit: Fit) -> str:
    return ", ".join(f"{name} (give one)" if name in fit.required else name for name in fit.options)


def _notes(found: Fits) -> list[str]:
    return [f"{fit.method}: {fit.why}" for fit in found.methods if fit.fits and fit.why] + _facts(found)


def _facts(found: Fits) -> list[str]:
    said = []
    if found.measured:
        said.append(f"Measured on {found.measured}; speed-ups are against plain decoding.")
    if not found.checked:
        said.append("Read off the config, without weights. The self-check of the first use has the last word.")
    return said
