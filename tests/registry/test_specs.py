"""A line of a manifest is checked when it is written, and imports what it names only when asked."""

from fractions import Fraction
from typing import Any

import pytest

from mmspec.registry import AdapterSpec, DefaultMethod, DrafterSpec, MethodSpec, RuleSpec, Spec, TargetSpec

PART = dict(name="r", factory="fractions:Fraction", summary="A part.")
RULE = dict(PART, exactness="lossless")
METHOD = dict(name="m", exactness="lossy", summary="A.")
TARGET = dict(name="t", factory="no_such_module:X", summary="A target.", owner="mine")


def test_sets_are_frozen_and_defaults_copied() -> None:
    given = {"k": 3}
    method = MethodSpec(**METHOD, needs={"tree"}, defaults=given)
    given["k"] = 4
    assert method.needs == frozenset({"tree"}) and method.defaults == {"k": 3}
    assert isinstance(hash(method), int)


def test_a_drafter_derives_its_methods() -> None:
    drafter = DrafterSpec(
        name="repeat", factory="fractions:Fraction", summary="Repeats.", paper="https://a.b", owner="p"
    )
    derived = drafter.method("Drafts repetitions.")
    facts = dict(drafter="repeat", summary="Drafts repetitions.", exactness="invariant", paper="https://a.b")
    assert derived == MethodSpec(name="repeat", **facts) and derived.owner == ""
    other = dict(
        name="bold", rule="block", needs={"text"}, exactness="lossless", defaults={"n": 1}, paper="https://c.d"
    )
    assert drafter.method("Drafts repetitions.", **other) == MethodSpec(**{**facts, **other})
    with pytest.raises(ValueError, match="method 'repeat': needs is a set of lower-case words, not 'text'"):
        drafter.method("Drafts repetitions.", needs="text")


@pytest.mark.parametrize(
    ("spec", "fields", "change", "says"),
    [
        (RuleSpec, RULE, {"name": "Big Name"}, "lower-case"),
        (RuleSpec, RULE, {"name": "a:b"}, "lower-case"),
        (RuleSpec, RULE, {"needs": "tree"}, "rule 'r': needs is a set of lower-case words, not 'tree'"),
        (RuleSpec, RULE, {"summary": "x" * 81}, "this one 81"),
        (RuleSpec, RULE, {"factory": "fractions.Fraction"}, "rule 'r': factory is written 'module:Name'"),
        (RuleSpec, RULE, {"factory": None}, "factory is written 'module:Name', not None"),
        (RuleSpec, RULE, {"exactness": None}, "one of invariant, lossless, lossy, synthetic"),
        (RuleSpec, RULE, {"exactness": "exact"}, "one of invariant"),
        (RuleSpec, RULE, {"words": {"Big Word": "It."}}, "words is a set of lower-case words"),
        (RuleSpec, RULE, {"words": {"big": 5}}, r"words\['big'\] is a text, not 5"),
        (TargetSpec, TARGET, {"pipeline": "fractions.Fraction"}, "pipeline is written 'module:Name'"),
        (TargetSpec, TARGET, {"architectures": "Model"}, "architectures is a set of names of classes, not 'Model'"),
        (TargetSpec, TARGET, {"architectures": {"a model"}}, "architectures is a set of names of classes"),
        (AdapterSpec, RULE, {"fits": "fractions"}, "adapter 'r': fits is written 'module:Name'"),
        (AdapterSpec, RULE, {"fits": "operator:not_", "k": 0}, "k is an integer >= 1, not 0"),
    ],
)
def test_mistakes_are_named(spec: type[Spec], fields: dict[str, Any], change: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        spec(**(fields | change))


@pytest.mark.parametrize(
    ("spec", "fields", "field"),
    [
        (RuleSpec, RULE, "drafter"),
        (RuleSpec, RULE, "pipeline"),
        (RuleSpec, RULE, "default_methods"),
        (DrafterSpec, PART, "exactness"),
        (MethodSpec, METHOD, "factory"),
        (MethodSpec, METHOD, "options"),
        (TargetSpec, TARGET, "needs"),
        (AdapterSpec, RULE | {"fits": "operator:not_"}, "rule"),
    ],
)
def test_a_spec_has_its_own_fields_only(spec: type[Spec], fields: dict[str, Any], field: str) -> None:
    spec(**fields)
    with pytest.raises(TypeError, match=f"unexpected keyword argument '{field}'"):
        spec(**fields, **{field: "x"})


def test_load_imports_the_factory_and_explains_a_failure() -> None:
    assert RuleSpec(**RULE).load() is Fraction
    with pytest.raises(ImportError, match="rule 'r' should be at 'fractions:Nope'"):
        RuleSpec(**(RULE | {"factory": "fractions:Nope"})).load()
    with pytest.raises(ImportError, match="rule 'r' should be at 'no_such_module:X'"):
        RuleSpec(**(RULE | {"factory": "no_such_module:X"})).load()


def test_load_pipeline_imports_the_class_and_explains_a_failure() -> None:
    assert TargetSpec(**TARGET, pipeline="fractions:Fraction").load_pipeline() is Fraction
    with pytest.raises(ImportError, match="the pipeline of target 'mine:t' should be at 'fractions:Nope'"):
        TargetSpec(**TARGET, pipeline="fractions:Nope").load_pipeline()
    with pytest.raises(ValueError, match=r"the target 'mine:t' has no pipeline; use mmspec\.enable"):
        TargetSpec(**TARGET).load_pipeline()


def test_a_default_method_is_checked_too() -> None:
    with pytest.raises(ValueError, match="default method 'suffix': k is an integer >= 1, not 0"):
        DefaultMethod(method="suffix", k=0)


def test_an_adapter_says_what_it_takes() -> None:
    adapter = AdapterSpec(**RULE, fits="operator:not_")
    assert adapter.takes(None) and not adapter.takes(3)
    with pytest.raises(ImportError, match="the function `fits` of adapter 'r' should be at 'operator:nought'"):
        AdapterSpec(**RULE, fits="operator:nought").takes(None)
