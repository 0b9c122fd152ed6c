"""Denoising ahead: whole trajectories follow the chain, in fewer calls, whatever the head's prediction is worth."""

from dataclasses import dataclass

import pytest
import torch

from mmspec.core.distributions import DenoisingChain, ahead, reflect
from mmspec.core.philox import PhiloxSource
from mmspec.testing.oracles import linear_joint
from tests.support.toys.chain import LinearHead
from tests.support.white import white_p_value, whitened

LEVEL, STEPS, ROWS, CONDITION, CARRIED, SIGMA = 1e-4, 5, 2_000, 0.7, 0.6, 0.5


@dataclass
class Foreseen(LinearHead):
    """A head whose frozen prediction is exact if `taken` is `carried`, the share of a state that it attributes."""

    taken: float = CARRIED  # what of the state is thought to be the state's
    seen: int = 0  # states that were evaluated

    def mean(self, x, step, condition):
        self.seen += len(x)
        return super().mean(x, step, condition)

    def clean(self, x, step, mean):
        return mean - self.taken * x

    def around(self, x, step, clean):
        return clean + self.taken * x


def head_of(taken, dim=1):
    return Foreseen(dim, CARRIED, 1.0, torch.full((STEPS,), SIGMA), torch.zeros(STEPS), taken=taken)


def drawn(head, ahead, rows=ROWS, nodes=1, seed=0):
    """The distribution and its draws `[rows, nodes, 2 steps + 1, dim]`."""
    distribution = DenoisingChain(torch.full((rows, nodes, head.dim), CONDITION), head, ahead)
    return distribution, distribution.draw(
        PhiloxSource.seeded(seed, rows).fresh(torch.zeros(rows, dtype=torch.int64), 0, nodes)
    )


def follows(distribution, draws):
    """p-value of all states of all nodes together: the token's distribution, and those of the steps before it."""
    weights = torch.diag(torch.full((STEPS,), CARRIED), -1)
    sigma, bias = (torch.tensor([first] + [then] * STEPS) for first, then in ((1.0, SIGMA), (0.0, CONDITION)))
    mean, covariance = linear_joint(weights, bias, sigma)
    states = distribution.with_draws(draws).states
    white = [whitened(states[:, node, :, d], mean, covariance) for node in range(states.shape[1]) for d in (0, -1)]
    return white_p_value(torch.cat(white[:: 1 if distribution.head.dim > 1 else 2], 1))


@pytest.mark.parametrize(
    ("width", "taken", "dim"), [(1, 0.2, 1), (3, 0.2, 4), (3, -0.4, 1), (8, 0.5, 1), (3, CARRIED, 16)]
)
def test_whole_trajectories_follow_the_chain(width, taken, dim):
    head = head_of(taken, dim)
    distribution, draws = drawn(head, width, nodes=2)
    assert follows(distribution, draws) > LEVEL or follows(*drawn(head, width, nodes=2, seed=9)) > LEVEL
    held = distribution.with_draws(draws)
    torch.testing.assert_close(held.means, CARRIED * held.states[:, :, :-1] + CONDITION)


def test_a_right_prediction_takes_as_few_calls_as_there_can_be():
    for width, calls in ((1, 3), (2, 3), (4, 2), (64, 2)):  # one without a prediction, then width + 1 steps each
        head = head_of(CARRIED)
        drawn(head, width, rows=7)
        assert head.calls == calls and head.seen == 7 * STEPS


def test_a_wrong_one_costs_evaluations_and_no_more_calls():
    counts = {}
    for taken in (CARRIED, 0.3, -3.0):
        head = head_of(taken, dim=8)
        for row in range(30):
            drawn(head, 3, rows=1, seed=row)
        counts[taken] = head.calls / 30, head.seen / 30
    assert counts[CARRIED][0] < counts[0.3][0] < counts[-3.0][0] <= STEPS
    assert STEPS == counts[CARRIED][1] < counts[0.3][1] < counts[-3.0][1]


def test_a_row_does_not_depend_on_the_others_nor_a_node():
    head = head_of(0.2, dim=2)
    together = drawn(head, 3, rows=5, nodes=3)[1]
    alone = drawn(head, 3, rows=1, nodes=3)[1]
    torch.testing.assert_close(alone[0], together[0])
    assert not torch.allclose(together[0, 0], together[0, 1])


def test_no_step_ahead_is_a_call_a_step():
    head = head_of(0.2)
    assert drawn(head, 0, rows=3)[1].shape == (3, 1, 2 * STEPS + 1, 1) and head.calls == STEPS


def test_bugs_are_seen(monkeypatch):
    head = head_of(-0.4)
    with monkeypatch.context() as m:  # all drafts are kept
        m.setattr(ahead, "reflect", lambda x, *rest: x)
        assert follows(*drawn(head, 3)) < LEVEL
    with monkeypatch.context() as m:  # half as much is known of what decides
        m.setattr(ahead, "reflect", lambda x, q, p, sigma, log_coin: reflect(x, q, p, sigma, 2 * log_coin))
        assert follows(*drawn(head, 3)) < LEVEL
    with monkeypatch.context() as m:  # the prediction of the last state is kept, whose noise is used again
        m.setattr(ahead._Chains, "_newest", lambda self, settled, width: torch.full_like(settled, width))
        assert follows(*drawn(head, 3)) < LEVEL


def test_heads_without_a_prediction_to_keep_are_refused():
    with pytest.raises(ValueError, match=r"LinearHead has no `clean` and `around`.*use ahead=0"):
        DenoisingChain(torch.zeros(1, 1, 1), LinearHead.of(1), ahead=2)
