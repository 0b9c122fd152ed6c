"""What a method promises, end to end: a name that users write, and the output that they get."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor

import mmspec
from mmspec.registry import MethodSpec
from mmspec.testing.conformance.benches import gaussian
from mmspec.testing.conformance.check import Broken, Untried, promise
from mmspec.testing.conformance.exactness import follows
from mmspec.testing.conformance.play import LIMIT, K, Player, differing, plain
from mmspec.testing.conformance.rules import Pair
from mmspec.testing.conformance.subject import Subject, Trial

NEW = 20


def exact(component: MethodSpec) -> bool:
    """Whether a method says that it is exact."""
    return component.exactness in ("invariant", "lossless")


@promise("method", when=exact)
def greedy_equals_plain(subject: Subject) -> str:
    """At temperature 0 the output is plain greedy decoding."""
    return _equals(subject, sample=False)


@promise("method", when=lambda component: component.exactness == "invariant")
def sampled_equals_plain(subject: Subject) -> str:
    """`invariant`: with the same seed, sampled output is that of plain decoding."""
    return _equals(subject, sample=True)


@promise("method", when=lambda component: component.exactness == "lossless")
def sampled_follows_the_distribution(subject: Subject) -> str:
    """`lossless`: the joint of several sampled units is the target's own."""
    found = []
    for trial in subject.trials:
        known = trial.bench.next_distribution is not None or trial.bench is gaussian()
        if known and (trial.example.rows or 2) > 1:
            rows = subject.rows(trial.bench)
            pair = Pair(trial.bench, subject.component.name, lambda t=trial: t.drafter(), rows)  # type: ignore[misc]
            found.append(follows(pair, subject.rule(trial.example)))
    if not found:
        raise Untried("no distribution to compare with: give its target's example at most 8 units")
    return f"{min(found).number}, the smallest of {len(found)}"


@promise("method")
def disabling_leaves_no_trace(subject: Subject) -> str:
    """`mmspec.enable`, `generate`, `disable`: the model is afterwards the object that it was before."""
    for trial in _enabled(subject):
        model: Any = trial.bench.target.model  # type: ignore[attr-defined]
        before, written = dict(vars(model)), _written(model)
        with mmspec.enable(model, subject.component.qualified, k=K, **_options(trial)):
            model.generate(**trial.bench.prompt([0]), max_new_tokens=4, do_sample=False)
        after = vars(model)
        changed = {name for name in before.keys() | after.keys() if before.get(name) is not after.get(name)}
        if changed or _written(model) != written:
            raise Broken(f"changed: {', '.join(sorted(changed)) or 'its configuration'}", f"{len(changed)} attributes")
    return f"0 of {len(before)} attributes changed"


@promise("method", when=exact)
def enabled_equals_stock(subject: Subject) -> str:
    """Enabled, `model.generate` returns what it returns without mmspec: greedy, and by torch's seed if `invariant`."""
    rows, lengths = 0, []
    for trial in _enabled(subject):
        model: Any = trial.bench.target.model  # type: ignore[attr-defined]
        for sample in (False, True) if subject.component.exactness == "invariant" else (False,):
            call = dict(**trial.bench.prompt([0, 1, 2]), max_new_tokens=NEW, do_sample=sample)
            stock = _generated(model, call)
            with mmspec.enable(model, subject.component.qualified, k=K, **_options(trial)) as spec:
                ours = _generated(model, call)
            assert spec.report is not None
            lengths.append(spec.report.acceptance_length)
            rows += len(ours)
            wrong = differing(list(ours), list(stock)) if ours.shape == stock.shape else len(ours)
            if wrong:
                how = "sampled" if sample else "greedy"
                raise Broken(f"{how}, rows differ from unmodified transformers", f"{wrong} of {len(ours)} rows differ")
    return f"0 of {rows} rows differ, acceptance length {min(lengths):.2f} to {max(lengths):.2f}"


def _equals(subject: Subject, sample: bool) -> str:
    rows, lengths = 0, []
    for trial in subject.trials:
        if not trial.bench.discrete:  # such units have no likeliest one, and no method promises their path
            continue
        rule = subject.rule(trial.example)
        played = Player(trial, rule).play(trial.batches, warp=trial.bench.warp if sample else trial.bench.greedy)
        wrong = differing(played.units, plain(trial.bench, trial.batches, limit=LIMIT, sample=sample))
        if wrong:
            raise Broken(f"on {trial.name}, rows are not the plain ones", f"{wrong} of {len(played.units)} rows differ")
        rows += len(played.units)
        lengths.append(played.length)
    if not rows:
        raise Untried("it fits continuous targets only, which are not greedy")
    return f"0 of {rows} rows differ, acceptance length {min(lengths):.2f} to {max(lengths):.2f}"


def _enabled(subject: Subject) -> list[Trial]:
    """Trials on a live model that can be enabled."""
    found = [trial for trial in subject.trials if _generates(trial)]
    found = [t for t in found if subject.registry.target_for(t.bench.target.model) is not None]  # type: ignore[attr-defined]
    if not found:
        raise Untried("it fits no target with an example whose prompts are arguments of a live model's `generate`")
    return found


def _generates(trial: Trial) -> bool:
    """Whether a live model's `generate` takes what the target takes: pictures are made by a pipeline instead."""
    live = hasattr(getattr(trial.bench.target, "model", None), "generate")
    return live and isinstance(trial.bench.prompt([0]), Mapping)


def _options(trial: Trial) -> dict[str, Any]:
    """The example's options as `enable` takes them: those that are not defaults, nor the method's own."""
    options, component = trial.example.options, trial.subject.component
    if options is None:
        return {}
    given = {f.name: getattr(options, f.name) for f in fields(options) if getattr(options, f.name) is not f.default}
    return {name: value for name, value in given.items() if name not in component.defaults}


def _generated(model: Any, call: dict[str, Any]) -> Tensor:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        ids: Tensor = model.generate(**call)
        return ids


def _written(model: Any) -> tuple[str, str]:
    return model.config.to_json_string(), model.generation_config.to_json_string()
