"""The default methods of the benchmarks of language models fit the models that they are for."""

from typing import Any

import pytest

from mmspec import shipped
from mmspec.bench.race import Plan
from mmspec.kits.text.bench.run import bench
from mmspec.kits.text.bench.settings import BenchOptions, Subject
from mmspec_ssm import bench as ssm
from mmspec_text.bench import methods_of

SUBJECTS = [
    pytest.param(Subject("text", "mmspec/text-14m", methods_of("mmspec/text-14m")), id="text"),
    pytest.param(Subject("text", "mmspec/text-1m", methods_of("mmspec/text-1m")), id="another text model"),
    pytest.param(Subject("ssm", "mmspec/ssm-5m", ssm.methods_of("mmspec/ssm-5m")), id="ssm"),
]


def test_of_a_model_that_does_not_ship_only_its_own_heads_are_tried() -> None:
    """The shipped draft model has another tokenizer."""
    methods = methods_of("smollm2")
    assert not any("drafter" in how for how in methods.values())
    assert methods["eagle"]["model"].removeprefix("mmspec/") in shipped.assets()


class Planned(Exception):
    """All methods were built, and the race would begin."""


def planned(plan: Plan) -> Any:
    raise Planned


@pytest.mark.parametrize("subject", SUBJECTS)
def test_every_default_method_can_be_built(subject: Subject) -> None:
    with pytest.raises(Planned):
        bench(subject, None, BenchOptions(prompts=1, new=8).quick, "cpu", planned)
