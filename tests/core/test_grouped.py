"""`Grouped`: drafts that are drawn in two steps, a group and then a unit of it, are coupled exactly."""

import pytest
import torch

from mmspec.core.distributions import Categorical, Grouped
from mmspec.core.noise import Round
from mmspec.core.philox import PhiloxSource
from mmspec.testing.statistics import joint_p_value

ROWS = 100_000
GROUP = torch.tensor([0, 0, 2, 2, 2, 5])  # units 0 and 1, 2 to 4, 5


def made(seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, Grouped]:
    """p, the whole law of the draft, drafted units of many rows, and what they were drawn from."""
    g = torch.Generator().manual_seed(seed)
    p, q = (torch.rand(6, generator=g).square() for _ in range(2))
    p, q = p / p.sum(), q / q.sum()
    x = torch.multinomial(q, ROWS, replacement=True, generator=g)
    same = GROUP[x][:, None] == GROUP  # [row, unit]: units of the drafted group
    groups = torch.zeros(6).scatter_add(0, GROUP, q)
    inside = torch.where(same, q, 0.0)
    inside = inside / inside.sum(-1, keepdim=True)
    return p, q, x, Grouped(Categorical(groups.expand(ROWS, 1, -1)), Categorical(inside[:, None]), GROUP)


@pytest.mark.parametrize("seed", range(3))
def test_its_law_and_its_acceptance(seed: int) -> None:
    """y ~ p; x stays as often as both steps say. A coupling that takes the second step for the whole is seen."""
    p, q, x, draft = made(seed)
    noise = Round(PhiloxSource.seeded(seed, ROWS, x.device), torch.zeros(ROWS, dtype=torch.int64), [0] * ROWS).fresh(1)
    y = Categorical(p.expand(ROWS, 1, -1)).couple(draft, x[:, None], noise)[:, 0]
    assert joint_p_value(y[:, None], p.double()) > 1e-4
    whole_p, whole_q = (torch.zeros(6).scatter_add(0, GROUP, each)[GROUP] for each in (p, q))
    kept = q * (whole_p / whole_q).clamp(max=1) * ((p / whole_p) / (q / whole_q)).clamp(max=1)
    assert float((y == x).float().mean()) == pytest.approx(float(kept.sum()), abs=0.005)
    wrong = Categorical(p.expand(ROWS, 1, -1)).couple(Categorical(draft.inside.probs), x[:, None], noise)[:, 0]
    assert float((wrong == x).float().mean()) < float(kept.sum())


def test_nodes_that_do_not_follow_draw_as_without_a_draft() -> None:
    p, _, x, draft = made(0)
    target = Categorical(p.expand(ROWS, 1, -1))
    noise = Round(PhiloxSource.seeded(1, ROWS, x.device), torch.zeros(ROWS, dtype=torch.int64), [0] * ROWS).fresh(1)
    follows = torch.arange(ROWS)[:, None] % 2 == 0
    y = target.couple(draft, x[:, None], noise, follows)
    assert torch.equal(y[~follows], target.draw(noise)[~follows])
    with pytest.raises(TypeError, match="one group alone"):
        draft.draw(noise)
    with pytest.raises(TypeError, match="only drafts"):
        draft.couple(target, x[:, None], noise)
    assert bool(draft.finite().all()) and len(Grouped.cat([draft, draft]).confidence()[0]) == 2
