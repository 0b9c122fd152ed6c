"""The heads alone: the denoising chain, guidance and losses, against closed forms."""

import pytest
import torch

from mmspec.core.distributions import DenoisingChain
from mmspec.core.philox import PhiloxSource
from mmspec_continuous.models.continuous_ar import MixtureHead
from mmspec_continuous.models.denoiser import Denoiser
from tests.support.close import assert_near
from tools.train.pictures.latents import head_loss


def head_of(steps=4, sigma_0=0.2, dim=2):
    torch.manual_seed(0)
    return Denoiser(dim, 5, 8, 2, steps, sigma_0)


class Exact(Denoiser):
    """A head with the exact v of tokens N(2, 0.5²), as a perfect network would have learned it."""

    MEAN, SPREAD = 2.0, 0.5

    def forward(self, x, step, told):
        kept = self.alpha_bar[step]
        gain = kept.sqrt() * self.SPREAD**2 / (kept * self.SPREAD**2 + 1 - kept)
        x0 = self.MEAN + gain * (x - kept.sqrt() * self.MEAN)
        return (kept.sqrt() * x - x0) / (1 - kept).sqrt()


@pytest.mark.parametrize("sigma_0", [0.01, 0.4])
def test_a_perfect_network_draws_the_tokens_and_the_noise_of_the_last_step(sigma_0):
    head = Exact(2, 5, 8, 1, 150, sigma_0)
    distribution = DenoisingChain(torch.zeros(1, 4000, head.steps.shape[1]), head)
    noise = PhiloxSource.seeded([0], 1).fresh(torch.zeros(1, dtype=torch.int64), 0, 4000)
    with torch.no_grad():
        tokens = distribution.units(distribution.draw(noise))[0]
    wanted = (Exact.SPREAD**2 + sigma_0**2) ** 0.5
    assert torch.allclose(tokens.mean(0), torch.full((2,), Exact.MEAN), atol=0.06)
    assert torch.allclose(tokens.std(0), torch.full((2,), wanted), rtol=0.06)


def test_the_mean_carries_over_what_the_head_says():
    head, told = head_of(), torch.randn(3, head_of().steps.shape[1])
    x = torch.randn(3, 2)
    with torch.no_grad():
        for step in range(4):
            v = head(x, step, told)
            assert torch.allclose(head.mean(x, step, told), head.carry[step] * x - head.gain[step] * v, atol=1e-6)
    assert (head.sigmas > 0).all() and float(head.sigmas[-1]) == pytest.approx(0.2)
    assert (head.alpha_bar[1:] > head.alpha_bar[:-1]).all() and head.alpha_bar[0] < 0.001


def test_scales_of_rows_are_their_own():
    head = head_of()
    told, null = torch.randn(2, 3, 1, head.steps.shape[1])
    both = head.guided(told, null, torch.tensor([1.0, 2.0, 0.0]))
    x = torch.randn(3, 2)
    with torch.no_grad():
        made = head.mean(x, 2, both[:, 0])
        given, away = head.mean(x, 2, told[:, 0]), head.mean(x, 2, null[:, 0])
    for row, wanted in enumerate((given[0], 2 * given[1] - away[1], away[2])):
        assert torch.allclose(made[row], wanted, atol=1e-5)


@pytest.mark.parametrize("guided", [False, True])
def test_states_may_be_at_steps_of_their_own_and_a_prediction_can_be_kept(guided):
    head, steps = head_of(), torch.tensor([3, 0, 2])
    told, null = torch.randn(2, 3, 1, head.steps.shape[1])
    condition = head.guided(told, null if guided else None, 1.7)[:, 0]
    x = torch.randn(3, 2)
    with torch.no_grad():
        made = head.mean(x, steps, condition)
        one_by_one = [head.mean(x[i : i + 1], int(steps[i]), condition[i : i + 1]) for i in range(3)]
        assert_near(made, torch.cat(one_by_one))
        clean = head.clean(x, steps, made)
        assert_near(head.around(x, steps, clean), made)
        if not guided:
            kept = head.alpha_bar[steps][:, None]
            v = torch.cat([head(x[i : i + 1], int(steps[i]), told[i]) for i in range(3)])
            torch.testing.assert_close(clean, kept.sqrt() * x - (1 - kept).sqrt() * v, rtol=1e-3, atol=1e-3)


def test_the_loss_is_of_v():
    class Knows(Denoiser):
        off = 0.0

        def forward(self, x, step, told):
            kept = self.alpha_bar[step][..., None]
            return (kept.sqrt() * x - 3.0) / (1 - kept).sqrt() + self.off

    head = Knows(2, 5, 8, 1, 6, 0.1)
    told, tokens = torch.zeros(2, 7, head.steps.shape[1]), torch.full((2, 7, 2), 3.0)
    assert head_loss(head, told, tokens, torch.Generator().manual_seed(0), 4) < 1e-6
    head.off = 0.5
    assert float(head_loss(head, told, tokens, torch.Generator().manual_seed(0), 4)) == pytest.approx(0.25, rel=1e-3)


def test_the_loss_of_a_mixture_is_its_density():
    torch.manual_seed(0)
    head, told, tokens = MixtureHead(3, 5, 4, 0.1), torch.randn(2, 6, 4 * 7), torch.randn(2, 6, 3)
    distribution = head.distribution(told, None, 1.0, None)
    wanted = -distribution.density.log_density(tokens[:, :, None]).mean() / 3
    assert torch.allclose(head_loss(head, told, tokens, torch.Generator(), 1), wanted, atol=1e-6)
    assert float(distribution.sigmas.min()) > 0.1 and torch.allclose(distribution.weights.sum(-1), torch.ones(2, 6))
