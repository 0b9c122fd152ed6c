"""`denoise-ahead` on our own model: calls of the head, tokens with NaN, and what the rule refuses."""

import pytest
import torch

from mmspec.core.decoder import Decoder
from mmspec.core.rules import Rejection
from mmspec.testing.toys.degenerate import DegenerateDrafts
from mmspec_continuous.drafters.jacobi import ContinuousJacobi
from mmspec_continuous.models.denoiser import Denoiser
from mmspec_continuous.pipeline import ContinuousTextToImagePipeline
from mmspec_continuous.rules.denoise_ahead import AheadOptions, DenoiseAhead
from mmspec_continuous.targets.continuous import ContinuousTarget
from tests.support.examples.continuous import captions, tiny

STEPS, LENGTH, SPREAD = 16, 12, 0.35


class Mixed(Denoiser):
    """A head with the exact v of two narrow Gaussians around its condition: predictions change from step to step."""

    def forward(self, x, step, told):
        kept = self.alpha_bar[step]
        kept = kept[..., None] if kept.dim() else kept
        variance = kept * SPREAD**2 + 1 - kept
        c = torch.tanh(told[..., : self.dim])
        off = torch.stack([x - kept.sqrt() * (c + side) for side in (-1.0, 1.0)])
        weight = torch.softmax(-off.square().sum(-1, keepdim=True) / (2 * variance), 0)
        x0 = (weight * (torch.stack([c - 1, c + 1]) + SPREAD**2 * kept.sqrt() / variance * off)).sum(0)
        return (kept.sqrt() * x - x0) / (1 - kept).sqrt()


@pytest.fixture(scope="module")
def target():
    model = tiny(token_dim=8, steps=STEPS, sigma_0=0.1)
    model.token_head.__class__ = Mixed
    return ContinuousTarget(model.eval())


def calls(target, rule, drafter=None, k=0):
    """Calls of the head, and target passes, for a few tokens of one guided picture."""
    total = passes = 0
    for seed in range(2):
        report = Decoder(target, drafter, rule, k=k).generate(captions([1], 1.5), LENGTH, seed=seed).report
        total, passes = total + target.head.calls, passes + report.rounds + 1
    return total / 2, passes / 2


def test_a_token_takes_half_the_calls_of_the_head(target):
    plain, passes = calls(target, Rejection())
    assert plain == STEPS * LENGTH and passes == LENGTH
    few = {ahead: calls(target, DenoiseAhead(AheadOptions(ahead))) for ahead in (1, 4)}
    print({ahead: plain / counted for ahead, (counted, _) in few.items()})
    assert few[1][1] == few[4][1] == LENGTH, "a pass a token, as ever"
    assert few[4][0] < 0.55 * plain < few[1][0] < 0.8 * plain


def test_a_row_is_the_row_alone(target):
    """Rows are refused at different steps, and what one drafts near its end is no other row's business."""
    decoder = Decoder(target, None, DenoiseAhead())
    made = decoder.generate(captions([1, 2, 3], 1.5), LENGTH, seed=[4, 5, 6]).units
    for row, label in enumerate([1, 2, 3]):
        alone = decoder.generate(captions([label], 1.5), LENGTH, seed=[4 + row]).units[0]
        torch.testing.assert_close(alone, made[row], atol=1e-3, rtol=1e-3)


def test_windows_are_coupled_as_ever(target):
    ours, theirs = (calls(target, rule, ContinuousJacobi(), 4) for rule in (DenoiseAhead(), Rejection()))
    assert theirs[0] == STEPS * theirs[1]
    assert theirs[0] - 4 * STEPS < ours[0] < theirs[0], (
        "only the first token, and rounds without a draft, are free draws"
    )


@pytest.mark.parametrize("rule", [Rejection(), DenoiseAhead()])
def test_drafts_without_a_distribution_do_no_harm(target, rule):
    """Tokens with NaN at nodes that no other node attends to must not reach the others through weights of 0."""
    drafter = DegenerateDrafts(ContinuousJacobi())
    output = Decoder(target, drafter, rule, k=4).generate(captions([1, 2, 3], 1.5), LENGTH, seed=1)
    assert all(row.isfinite().all() for row in output.units)
    assert not output.report.faults and output.report.acceptance_length > 1


def test_by_name(pipe):
    made = ContinuousTextToImagePipeline(**pipe.components).use("denoise-ahead", ahead=2)
    made.set_progress_bar_config(disable=True)
    drawn = made("red heart", seed=1)
    assert drawn.report.exactness == "lossless" and drawn.report.rounds == 15 and drawn.tokens.isfinite().all()
    assert made.decoder().rule.options.ahead == 2


def test_mixtures_have_no_steps():
    with pytest.raises(
        ValueError, match="the rule 'denoise-ahead' drafts the steps of a denoising head, and this model"
    ):
        Decoder(ContinuousTarget(tiny(head="gaussian-mixture")), None, DenoiseAhead())
