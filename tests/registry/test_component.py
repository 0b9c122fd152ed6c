"""A manifest line is checked when it is written, and imports what it names only when asked."""

import pytest

from mmspec.registry import Component

RULE = dict(name="r", kind="rule", factory="fractions:Fraction", exactness="lossless", summary="A rule.")


def test_sets_are_frozen_and_defaults_copied() -> None:
    given = {"k": 3}
    method = Component(name="m", kind="method", exactness="lossy", summary="A.", needs={"tree"}, defaults=given)
    given["k"] = 4
    assert method.needs == frozenset({"tree"}) and method.defaults == {"k": 3}
    assert isinstance(hash(method), int)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"name": "Big Name"}, "lower-case"),
        ({"name": "a:b"}, "lower-case"),
        ({"kind": "drafte"}, "did you mean 'drafter'"),
        ({"needs": "tree"}, "set of lower-case words"),
        ({"summary": "x" * 81}, "this one 81"),
        ({"factory": "fractions.Fraction"}, "module:Name"),
        ({"factory": None}, "factory is missing"),
        ({"exactness": None}, "one of invariant, lossless, lossy, synthetic"),
        ({"exactness": "exact"}, "one of invariant"),
        ({"drafter": "d"}, "belong to methods only"),
        ({"kind": "drafter"}, "exactness belongs to rules and methods"),
        ({"kind": "method"}, "no factory"),
        ({"pipeline": "fractions:Fraction"}, "rule 'r': pipeline belongs to a target"),
        ({"default_method": "plain"}, "rule 'r': default_method belongs to a target"),
        ({"default_k": 3}, "rule 'r': default_k belongs to a target"),
        ({"pipeline": "fractions.Fraction"}, "pipeline is written 'module:Name'"),
    ],
)
def test_mistakes_are_named(change: dict, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        Component(**(RULE | change))


def test_load_imports_the_factory_and_explains_a_failure() -> None:
    from fractions import Fraction

    assert Component(**RULE).load() is Fraction
    with pytest.raises(ImportError, match="rule 'r' should be at 'fractions:Nope'"):
        Component(**(RULE | {"factory": "fractions:Nope"})).load()
    with pytest.raises(ImportError, match="rule 'r' should be at 'no_such_module:X'"):
        Component(**(RULE | {"factory": "no_such_module:X"})).load()
    with pytest.raises(TypeError, match="no factory"):
        Component(name="m", kind="method", exactness="lossy", summary="A.").load()


def test_load_pipeline_imports_the_class_and_explains_a_failure() -> None:
    from fractions import Fraction

    target = dict(name="t", kind="target", factory="no_such_module:X", summary="A target.", owner="mine")
    assert Component(**target, pipeline="fractions:Fraction").load_pipeline() is Fraction
    with pytest.raises(ImportError, match="the pipeline of target 'mine:t' should be at 'fractions:Nope'"):
        Component(**target, pipeline="fractions:Nope").load_pipeline()
    with pytest.raises(ValueError, match=r"the target 'mine:t' has no pipeline; use mmspec\.enable"):
        Component(**target).load_pipeline()
