"""The promise of a method, end to end: users write its name, and get this output."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor

import mmspec
from mmspec.core.capabilities import RunsModel
from mmspec.testing.conformance.benches import gaussian
from mmspec.testing.conformance.exactness import follows
from mmspec.testing.conformance.play import K, Player, plain, refuse_differing
from mmspec.testing.conformance.promise import Broken, Untried, claims, is_exact, promise
from mmspec.testing.conformance.subject import Subject, Trial

NEW = 20


@promise("method", when=is_exact)
def greedy_equals_plain(subject: Subject) -> str:
    """At temperature 0 the output is plain greedy decoding."""
    return _equals(subject, sample=False)


@promise("method", when=claims("invariant"))
def sampled_equals_plain(subject: Subject) -> str:
    """`invariant`: with the same seed, sampled output is that of plain decoding."""
    return _equals(subject, sample=True)


@promise("method", when=claims("lossless"))
def sampled_follows_the_distribution(subject: Subject) -> str:
    """`lossless`: the joint of several sampled units is the target's own."""
    found = []
    for trial in subject.trials:
        known = trial.bench.next_distribution is not None or trial.bench is gaussian()
        if known and (trial.example.rows or 2) > 1:
            found.append(follows(trial, subject.rule()))
    if not found:
        raise Untried("no distribution to compare with: give its target's example at most 8 units")
    return f"{min(found).number}, the smallest of {len(found)}"


@promise("method")
def disabling_leaves_no_trace(subject: Subject) -> str:
    """`mmspec.enable`, `generate`, `disable`: the model is the same object afterwards."""
    for trial in _enabled(subject):
        model = _model(trial)
        before, written = dict(vars(model)), _written(model)
        with mmspec.enable(model, subject.component.qualified, k=K, **_options(trial)):
            model.generate(**trial.bench.prompt([0]), max_new_tokens=4, do_sample=False)
        after = vars(model)
        changed = {name for name in before.keys() | after.keys() if before.get(name) is not after.get(name)}
        if changed or _written(model) != written:
            raise Broken(f"changed: {', '.join(sorted(changed)) or 'its configuration'}", f"{len(changed)} attributes")
    return f"0 of {len(before)} attributes changed"


@promise("method", when=is_exact)
def enabled_equals_stock(subject: Subject) -> str:
    """Enabled, `model.generate` returns what it returns without mmspec: greedy, and by torch's seed if `invariant`."""
    if subject.pairing.wrt:
        raise Untried(f"its output follows {subject.pairing.wrt}; other checks compare it with plain decoding of that")
    rows, lengths = 0, []
    for trial in _enabled(subject):
        model = _model(trial)
        for sample in (False, True) if subject.component.exactness == "invariant" else (False,):
            call = dict(**trial.bench.prompt([0, 1, 2]), max_new_tokens=NEW, do_sample=sample)
            stock = _generated(model, call)
            with mmspec.enable(model, subject.component.qualified, k=K, **_options(trial)) as spec:
                ours = _generated(model, call)
            assert spec.report is not None
            lengths.append(spec.report.acceptance_length)
            how = "sampled" if sample else "greedy"
            rows += refuse_differing(list(ours), list(stock), f"{how}, rows differ from unmodified transformers")
    return f"0 of {rows} rows differ, acceptance length {min(lengths):.2f} to {max(lengths):.2f}"


def _equals(subject: Subject, sample: bool) -> str:
    rows, lengths = 0, []
    for trial in subject.trials:
        if not trial.bench.discrete:  # there is no greedy decoding, and no method promises equal samples
            continue
        played = Player(trial, subject.rule()).play(trial.batches, warp=None if sample else trial.bench.greedy)
        expected = plain(trial.bench, trial.batches, sample=sample)
        rows += refuse_differing(played.units, expected, f"on {trial.name}, rows are not the plain ones")
        lengths.append(played.length)
    if not rows:
        raise Untried("it fits continuous targets only, which are not greedy")
    return f"0 of {rows} rows differ, acceptance length {min(lengths):.2f} to {max(lengths):.2f}"


def _enabled(subject: Subject) -> list[Trial]:
    """Trials on a live model that can be enabled, whose `generate` takes what the target takes."""
    found = []
    for trial in subject.trials:
        model = _model(trial)
        generates = hasattr(model, "generate") and isinstance(trial.bench.prompt([0]), Mapping)
        if generates and subject.registry.target_for(model) is not None:
            found.append(trial)
    if not found:
        raise Untried("it fits no target with an example whose prompts are arguments of a live model's `generate`")
    return found


def _model(trial: Trial) -> Any:
    """The live model; None for a target without one."""
    return trial.bench.target.model if isinstance(trial.bench.target, RunsModel) else None


def _options(trial: Trial) -> dict[str, Any]:
    """The examples' options as `enable` takes them, without defaults and without those that the method sets."""
    rule = trial.subject.beside(trial.subject.pairing.rule)
    changed: dict[str, Any] = {}
    for options in (trial.example.options, rule.examples[0].options):
        for option in () if options is None else fields(options):
            if getattr(options, option.name) is not option.default:
                changed[option.name] = getattr(options, option.name)
    return {name: value for name, value in changed.items() if name not in trial.subject.component.defaults}


def _generated(model: Any, call: dict[str, Any]) -> Tensor:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return model.generate(**call)


def _written(model: Any) -> tuple[str, str]:
    return model.config.to_json_string(), model.generation_config.to_json_string()
