"""Under `match` multi-token layers change no token; laws for their q; and transformers' own use of the layers."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from mmspec.core.decoder import Decoder
from mmspec.core.rules import Match, RecursiveRejection, Rejection
from mmspec.hosts.target import TransformersTarget
from mmspec.testing.statistics import LEVEL
from mmspec.testing.tiny_models import llama
from mmspec_text.drafters.mtp import Mtp, MtpOptions
from tests.heads.conftest import GREEDY, SAMPLED
from tests.heads.mtp_heads import HEADS, checkpoint
from tests.support.head_equality import assert_equal_to_transformers
from tests.support.mtp_layouts import LAYOUTS

FORMS: list[dict[str, Any]] = [{"form": "chain"}, {"form": "rerank", "width": 3, "nodes": 10}]
NAMES = [pytest.param(name, marks=[] if name == "two" else [pytest.mark.slow]) for name in HEADS]
ZOO = ("mimo", "deepseek", "deepseek-two", "glm", "qwen3-next", "exaone", "mimo-v2", "ernie", "nemotron-h", "longcat")


@pytest.mark.thinned
@pytest.mark.compiled
@pytest.mark.parametrize("form", FORMS, ids=lambda form: form["form"])
@pytest.mark.parametrize("sampled", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_equal_to_plain(name: str, sampled: bool, form: dict[str, Any], rows: dict[str, Tensor]) -> None:
    warp, target = SAMPLED if sampled else GREEDY, TransformersTarget(llama())
    drafter = Mtp(MtpOptions(model=checkpoint(name), probe=False, **form))
    for batch in (1, 3):
        few = {key: value[:batch] for key, value in rows.items()}
        plain = Decoder(target, None, Match(), k=0).generate(few, 12, seed=5, warp=warp)
        ours = Decoder(target, drafter, Match(), k=4).generate(few, 12, seed=5, warp=warp)
        assert all(torch.equal(a, b) for a, b in zip(ours.units, plain.units, strict=True))
    assert ours.report.accepted > 0, "nothing was accepted, so nothing was tested"


@pytest.mark.compiled("expert loop")  # LongCat-Flash
@pytest.mark.parametrize("form", FORMS, ids=lambda form: form["form"])
@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.slow) for name in ZOO])
def test_equal_to_transformers(name: str, form: dict[str, Any], prompts: Any, tmp_path: Path) -> None:
    """The folder holds both, the model and its layers."""
    model = LAYOUTS[name].loaded(LAYOUTS[name].save(tmp_path))
    assert_equal_to_transformers(model, prompts, {"method": "mtp", "probe": False, **form})


@pytest.mark.slow
@pytest.mark.parametrize("name", ["one", "two"])
@pytest.mark.parametrize(
    ("rule", "form"),
    [(Rejection, {"form": "chain"}), (RecursiveRejection, {"form": "branching", "branching": (2, 2)})],
)
def test_the_law_of_rules_that_use_q(name: str, rule: type, form: dict[str, Any], law: Any) -> None:
    drafter = Mtp(MtpOptions(model=checkpoint(name), probe=False, **form))
    assert law(Decoder(TransformersTarget(llama()), drafter, rule(), k=2)) > LEVEL
