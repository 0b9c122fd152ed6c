"""`typical`: the paths that Medusa's own function accepts, its bias, and its two ends."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from torch import Tensor

import mmspec
from mmspec.core.decoder import Decoder
from mmspec.core.distributions import Categorical
from mmspec.core.noise import Round
from mmspec.core.philox import PhiloxSource
from mmspec.core.rules import Match
from mmspec.core.types import Draft, Scores, Verdict
from mmspec.core.warp import Warp
from mmspec.hosts.target import TransformersTarget
from mmspec.testing.statistics import joint_p_value
from mmspec.testing.tiny_models import llama, prompt
from mmspec_text.drafters.heads.pathwise.drafter import PathOptions
from mmspec_text.drafters.medusa import Medusa
from mmspec_zoo.relaxed.typical import Typical, TypicalOptions
from tests.support.path_heads import LAYOUTS

EXACT = {"epsilon": 1.0, "delta": 1e9}


def judged(draft: Draft, p: Tensor, seed: int = 3, **options: Any) -> Verdict:
    rows = len(p)
    rooted = draft.rooted(torch.zeros(rows, dtype=torch.int64), torch.full((rows,), 9))
    scores = Scores(Categorical(p), torch.ones(p.shape[:2], dtype=torch.bool))
    noise = Round(PhiloxSource.seeded(seed, rows), torch.zeros(rows, dtype=torch.int64), [0] * rows)
    return Typical(TypicalOptions(**options)).accept(rooted, scores, noise)


def test_paths_are_those_of_medusas_own_function() -> None:
    """Trees of ten nodes; `leaves` are the last nodes of accepted paths, 0 for none."""
    with safe_open(Path(__file__).parent / "typical.safetensors", "pt") as file:
        found = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
        about = file.metadata()
    p = (found["logits"].float() / float(about["temperature"])).softmax(-1)
    draft = Draft.tree(found["units"], found["parents"].tolist())
    verdict = judged(draft, p, epsilon=float(about["epsilon"]), delta=float(about["delta"]))
    ours = torch.nn.functional.pad(verdict.path, (1, 0)).amax(1)
    assert torch.equal(ours, found["leaves"]) and {0, 1, 2, 3} <= set(verdict.length.tolist())


def some_distributions(rows: int, nodes: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(11)
    p = torch.softmax(torch.randn(nodes + 1, 6, generator=generator) * 1.5, -1)
    return p.expand(rows, -1, -1), torch.softmax(torch.randn(6, generator=generator), -1)


def test_the_output_of_a_chain_follows_the_closed_form() -> None:
    rows = 50_000
    p, q = some_distributions(rows, 1)
    x = torch.multinomial(q, rows, replacement=True, generator=torch.Generator().manual_seed(2))[:, None]
    verdict = judged(Draft.chain(x, Categorical(q.expand(rows, 1, 6))), p, epsilon=0.2, delta=0.5)
    first = torch.where(verdict.length > 0, x[:, 0], verdict.unit)
    entropy = -(p[0, 0] * p[0, 0].log()).sum()
    inside = p[0, 0] > min(0.2, 0.5 * math.exp(-float(entropy)))
    out = q * inside + (1 - (q * inside).sum()) * p[0, 0]
    assert 0 < inside.sum() < 6 and joint_p_value(first[:, None], out) > 1e-4
    assert joint_p_value(first[:, None], p[0, 0]) < 1e-4, "the bias must be seen, or this test is blind"
    assert verdict.tv is not None and verdict.excess_acceptance is not None
    assert torch.allclose(verdict.tv[:, 0], (out - p[0, 0]).abs().sum() / 2, atol=1e-6)
    rate = float((verdict.length > 0).float().mean())
    assert abs(rate - float(torch.minimum(p[0, 0], q).sum() + verdict.excess_acceptance[0, 0])) < 5e-3


def test_the_bias_of_a_tree_given_its_units() -> None:
    """Two children of the root, one child of the first: at the root p is replaced by one unit, where one passes."""
    p, _ = some_distributions(4_000, 3)
    for epsilon in (0.0, 0.9):
        units = p[:1, 0].topk(2).indices
        chosen = torch.cat([units, units[:, :1]], 1).expand(len(p), -1)
        verdict = judged(Draft.tree(chosen, [-1, -1, 0]), p, epsilon=epsilon, delta=9.0)
        assert verdict.tv is not None and verdict.excess_acceptance is not None
        root = p[0, 0]
        if epsilon:
            assert not verdict.tv.any() and not verdict.length.any()
            assert joint_p_value(verdict.unit[:, None], root) > 1e-4
        else:
            assert verdict.path.tolist() == [[1, 3]] * len(p), "the deepest path"
            assert torch.allclose(verdict.tv[:, 0], 1 - root[units[0, 0]], atol=1e-6)
            assert torch.allclose(verdict.excess_acceptance[:, 0], 1 - root[units[0]].sum(), atol=1e-6)
            assert torch.allclose(verdict.tv[:, 1], 1 - p[0, 1, units[0, 0]], atol=1e-6) and not verdict.tv[:, 2:].any()


@pytest.mark.parametrize("form", ["chain", "rerank"])
def test_with_the_heads_of_medusa(form: str, tmp_path: Path) -> None:
    """Greedy decoding stays as it is, sampled texts say their bias, and the strictest options have none."""
    layout = LAYOUTS["medusa"]
    head = str(layout.save(tmp_path))

    def output(rule: Any, warp: Warp) -> Any:
        drafter = Medusa(PathOptions(model=head, probe=False, form=form))  # type: ignore[arg-type]
        return Decoder(TransformersTarget(llama()), drafter, rule, k=3).generate(prompt([0, 1]), 40, seed=1, warp=warp)

    greedy = Warp.sampling(temperature=0)
    plain, ours = output(Match(), greedy), output(Typical(), greedy)
    assert all(torch.equal(a, b) for a, b in zip(ours.units, plain.units, strict=True)) and ours.report.bias.tv == 0
    loose, strict = output(Typical(), Warp.sampling()), output(Typical(TypicalOptions(**EXACT)), Warp.sampling())
    assert loose.report.bias.tv > 0.01 and loose.report.accepted > strict.report.accepted == 0
    assert strict.report.bias.tv == 0 and loose.report.exactness == "lossy"


def test_by_name(tmp_path: Path) -> None:
    head = str(LAYOUTS["medusa"].save(tmp_path))
    with mmspec.enable(llama(), "medusa", drafter=head, rule="typical", epsilon=0.2, k=3) as spec:
        llama().generate(torch.tensor([[1, 2, 3]]), max_new_tokens=20, do_sample=True)
    assert "lossy" in str(spec.report)
    with pytest.raises(ValueError, match="epsilon"):
        mmspec.enable(llama(), "medusa", drafter=head, rule="typical", epsilon=1.5)
