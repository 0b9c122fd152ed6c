"""The promises of a manifest: every name leads somewhere, what stands there says the same, and reading it is cheap."""

import dataclasses
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import cache
from typing import Any

from mmspec.core.capabilities import TargetAware
from mmspec.core.drafters.host import HostDrafter
from mmspec.registry.fields import EXACTNESS
from mmspec.registry.options import build, explain
from mmspec.testing.conformance.promise import Broken, Untried, has_options, promise
from mmspec.testing.conformance.subject import Subject

PARTS = ("target", "drafter", "rule", "policy")
FACTS = ("needs", "offers", "exactness")
MEMBERS = {
    "target": ("offers", "vocab", "start", "verify", "commit", "truncate"),
    "drafter": ("offers", "needs", "bind", "width", "start", "propose", "observe"),
    "rule": ("exactness", "needs", "offers", "draft_noise", "accept"),
    "policy": ("budget", "trim", "observe"),
}
"""The members that the protocols in `mmspec.core` ask for."""

_IMPORT = """
import importlib, importlib.util, sys, time
name, path = sys.argv[1:]
import mmspec.registry
began = time.perf_counter()
if path and importlib.util.find_spec(name.split(".")[0]) is None:
    spec = importlib.util.spec_from_file_location(name, path)
    sys.modules[name] = importlib.util.module_from_spec(spec)  # where a dataclass looks its module up
    spec.loader.exec_module(sys.modules[name])
else:
    importlib.import_module(name)
print(1e3 * (time.perf_counter() - began), *(m for m in ("torch", "transformers", "diffusers") if m in sys.modules))
"""


@promise(*PARTS, "adapter")
def factory_imports(subject: Subject) -> str:
    """Everything that the manifest names can be imported."""
    began = time.perf_counter()
    subject.component.load()
    return f"{subject.component.factory} in {1e3 * (time.perf_counter() - began):.0f} ms"


@promise(*PARTS, "method", "adapter")
def import_is_cheap(subject: Subject) -> str:
    """The module with the manifest imports no torch (and so touches no device), nor anything as heavy."""
    record = next((p for p in subject.registry.plugins() if p.name == subject.component.owner), None)
    if record is None or record.location is None:
        raise Untried("the plugin is an object of this process; there is no module to import")
    milliseconds, heavy = _imported(record.module, record.location)
    if heavy:
        raise Broken(f"importing {record.module} imports {heavy}; import it inside of functions", milliseconds)
    return milliseconds


@promise(*PARTS)
def can_be_made(subject: Subject) -> str:
    """The factory makes one of the default options, or of the example's, and it has what its protocol asks for."""
    component = subject.component
    members = MEMBERS[component.kind]
    for instance in _instances(subject):
        missing = [name for name in members if not hasattr(instance, name)]
        if missing:
            host = isinstance(instance, HostDrafter) and not isinstance(instance, TargetAware)
            hint = "; a HostDrafter is wrapped: mmspec.core.drafters.host.HostDrafterAdapter(it)" if host else ""
            raise Broken(
                f"{type(instance).__name__} lacks {', '.join(missing)}{hint}", f"{len(missing)} members missing"
            )
    if component.kind == "drafter" and not _tried(subject) and subject.crashes:
        raise Broken(subject.crashes[0], f"{len(set(subject.crashes))} faults")
    return f"{len(subject.examples)} made, {len(members)} members each"


TARGET = "there is no live model to try it on: give the class an `example` (mmspec.testing.Example says how)"


def _tried(subject: Subject) -> bool:
    try:
        return bool(subject.trials)
    except Untried:
        return False


def _instances(subject: Subject) -> Iterator[Any]:
    """One component for every example; a target's is the example's own."""
    for example in subject.examples:
        if subject.component.kind != "target":
            yield subject.instance(example)
        elif example.target is None:
            raise Untried(TARGET)
        else:
            yield example.target


@promise(*PARTS[:3])
def manifest_agrees(subject: Subject) -> str:
    """`needs`, `offers` and `exactness` are the spec's; options may take offers away, and add needs."""
    facts = {name: said for name, said in vars(subject.component).items() if name in FACTS}
    factory = subject.component.load()
    stated = isinstance(factory, type) and all(hasattr(factory, name) for name in facts)
    for instance in [factory] if stated else _instances(subject):
        for name, said in facts.items():
            there = getattr(instance, name)
            less, more = (there, said) if name == "offers" else (said, there)
            if said != there and (stated or name == "exactness" or not less <= more):
                where = "on the class" if stated else "on an instance"
                raise Broken(f"{name} is {_words(said)} in the spec and {_words(there)} {where}")
    return f"{len(facts)} attributes agree"


@promise("drafter", "rule", "policy", when=has_options)
def options_are_explained(subject: Subject) -> str:
    """Options are a frozen dataclass, every one has a line of help, and the defaults (or the example's) are valid."""
    options: Any = subject.component.load_options()
    if not options.__dataclass_params__.frozen:
        raise Broken(f"{options.__name__} is not a frozen dataclass")
    lines = explain(options)
    silent = [line.name for line in lines if not line.help.strip()]
    number = f"{len(lines) - len(silent)} of {len(lines)} explained"
    if silent:
        raise Broken(f"no help for {', '.join(silent)}; write field(metadata={{'help': …}})", number)
    build(options, {}, subject.component.qualified)
    return number


@promise("method")
def parts_exist(subject: Subject) -> str:
    """A method's drafter and rule exist, and the options that it sets are theirs and valid."""
    pairing = subject.pairing
    parts = [part for part in (pairing.drafter, pairing.rule) if part is not None]
    everywhere, elsewhere = (subject.component.values_for(accelerator) for accelerator in (False, True))
    left = {*everywhere, *elsewhere} - {"k"}
    for part in parts:
        options = part.load_options()
        own = left & ({f.name for f in dataclasses.fields(options)} if options is not None else set())
        if options is not None:
            for values in (everywhere, elsewhere):
                build(options, {name: values[name] for name in own & {*values}}, part.qualified)
        left -= own
    if left:
        raise Broken(f"nobody has the option {', '.join(sorted(left))}")
    return " + ".join(part.qualified for part in parts)


@promise("method")
def rule_keeps_the_promise(subject: Subject) -> str:
    """A method's exactness is at most that of its rule."""
    component, rule = subject.component, subject.pairing.rule
    number = f"{component.exactness} with a rule that is {rule.exactness}"
    if EXACTNESS.index(str(component.exactness)) < EXACTNESS.index(str(rule.exactness)):
        raise Broken("it promises more than its rule does", number)
    return number


@promise("adapter")
def takes_its_models_only(subject: Subject) -> str:
    """An adapter says of any object, without an error, whether the adapter is for it."""
    strangers = (None, 3, "a name", object())
    taken = [repr(stranger) for stranger in strangers if subject.component.takes(stranger)]
    if taken:
        raise Broken(f"it takes {', '.join(taken)}", f"{len(taken)} of {len(strangers)} strangers taken")
    return f"0 of {len(strangers)} strangers taken"


@cache
def _imported(module: str, path: str) -> tuple[str, str]:
    """Time of importing a module in a new process, and what it brought that is heavy."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    run = subprocess.run([sys.executable, "-c", _IMPORT, module, path], env=environment, capture_output=True, text=True)
    if run.returncode:
        raise Broken(f"it cannot be imported in a new process: {run.stderr.strip().splitlines()[-1]}")
    milliseconds, *heavy = run.stdout.split()
    return f"{float(milliseconds):.0f} ms", ", ".join(heavy)


def _words(value: Any) -> str:
    return repr(value) if isinstance(value, str) or value is None else ", ".join(sorted(value)) or "nothing"
