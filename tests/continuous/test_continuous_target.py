"""`CausalContinuousAR` on the core's cache: the distributions are teacher forcing's, and every method keeps their
joint.
"""

from dataclasses import replace

import pytest
import torch
from scipy.stats import ks_2samp

from mmspec.core.decoder import Decoder
from mmspec.core.rules import Rejection
from mmspec.core.types import Draft, TargetOutput
from mmspec.kits.pictures.conditions import Condition
from mmspec_continuous.drafters.draft_model import ContinuousDraftModel, DraftModelOptions
from mmspec_continuous.drafters.jacobi import ContinuousJacobi, JacobiOptions
from mmspec_continuous.targets.continuous import ContinuousTarget
from tests.support.examples.continuous import captions, draft_model, tiny

LEVEL = 1e-4
ROWS, LENGTH = 5_000, 3


@pytest.fixture(scope="module")
def targets():
    return {
        head: ContinuousTarget(tiny(head=head, components=3, least=0.3)) for head in ("diffusion", "gaussian-mixture")
    }


def distributions_of(output, head):
    distribution = output.distribution
    return (
        distribution.condition
        if head == "diffusion"
        else torch.cat([distribution.weights[..., None], distribution.means, distribution.sigmas], -1)
    )


@pytest.mark.parametrize(("head", "scale"), [("diffusion", 1.0), ("diffusion", 1.7), ("gaussian-mixture", 1.0)])
def test_a_window_has_the_distributions_of_teacher_forcing(targets, head, scale):
    target, rows = targets[head], 3
    model, given = target.model, captions(range(rows), scale)
    tokens = torch.randn(rows, 10, 2, generator=torch.Generator().manual_seed(0))
    null = model.cls_embedding.null(rows) if scale != 1 else None
    with torch.no_grad():
        told = [None if c is None else model(c, tokens, given.mask) for c in (given.given, null)]
    wanted = distributions_of(
        TargetOutput(distribution=model.token_head.distribution(told[0], told[1], scale, target.head)), head
    )
    started = target.start(given, 16, 6)
    torch.testing.assert_close(distributions_of(started.output, head), wanted[:, :1], rtol=1e-4, atol=1e-4)
    cache, done = started.cache, 0
    for accepted in (2, 0, 1):
        draft = Draft.chain(tokens[:, done + 1 : done + 4]).rooted(tokens[:, done], torch.full((rows,), 9))
        made = distributions_of(target.verify(cache, draft), head)
        torch.testing.assert_close(made, wanted[:, done + 1 : done + 1 + made.shape[1]], rtol=1e-4, atol=1e-4)
        path = torch.arange(1, draft.nodes).expand(rows, -1)
        target.commit(cache, torch.where(path <= accepted, path, -1), torch.full((rows,), accepted + 1))
        done += accepted + 1


def sampled(target, drafter, given, seed, k):
    """The first tokens of many rows, `[rows, LENGTH · dim]`, and the acceptance length."""
    output = Decoder(target, drafter, Rejection(), k=k).generate(given, LENGTH, seed=seed)
    return torch.stack(output.units).flatten(1), output.report.acceptance_length


def unlike(a, b):
    """Smallest p-value of two samples as one distribution, corrected: coordinates, and projections that mix tokens."""
    along = torch.randn(a.shape[1], 12, generator=torch.Generator().manual_seed(5))
    along = torch.cat([torch.eye(a.shape[1]), along], 1)
    looks = [(a @ along, b @ along), (a[:, :2] * a[:, -2:], b[:, :2] * b[:, -2:])]
    p = [ks_2samp(x, y).pvalue for xs, ys in looks for x, y in zip(xs.T, ys.T, strict=True)]
    return min(1.0, min(p) * len(p))


def drafting(name):
    if name == "model":
        return ContinuousDraftModel(draft_model().options)
    return ContinuousJacobi(JacobiOptions(init=name))


@pytest.mark.parametrize(
    ("head", "scale", "drafter"),
    [("diffusion", 1.5, "left"), ("diffusion", 1.0, "model"), ("gaussian-mixture", 1.0, "left")],
)
def test_the_joint_of_tokens_is_that_of_plain_decoding(targets, head, scale, drafter):
    target, given = targets[head], captions([1] * ROWS, scale)
    plain, _ = sampled(target, None, given, 1, 0)
    for seed in (2, 7919):
        made, length = sampled(target, drafting(drafter), given, seed, 2)
        p = unlike(plain, made)
        if p > LEVEL:
            break
    assert p > LEVEL and length > 1.1
    if scale == 1.5:  # the test does reject another distribution
        assert unlike(plain, sampled(target, None, captions([1] * ROWS, 1.2), 3, 0)[0]) < LEVEL


@pytest.mark.parametrize("drafter", ["left", "above", "model"])
def test_a_row_does_not_depend_on_its_batch(targets, drafter):
    target, scale = targets["diffusion"], torch.tensor([1.5, 2.0, 1.2])
    decoder, seeds = Decoder(target, drafting(drafter), Rejection(), k=4), [3, 1, 4]
    output = decoder.generate(captions(range(3), scale), 16, seed=seeds)
    assert output.report.acceptance_length > 1.2
    for row in range(3):
        alone = decoder.generate(captions([row], float(scale[row])), 16, seed=[seeds[row]]).units[0]
        torch.testing.assert_close(alone, output.units[row], rtol=1e-3, atol=1e-3)


def test_guidance_leads_away_from_the_null_condition(targets):
    target, given = targets["diffusion"], captions([1, 2], 2.5)
    head, distribution = target.model.token_head, target.start(given, 4, 2).output.distribution
    x = torch.randn(2, 2, generator=torch.Generator().manual_seed(1))
    told = target.start(replace(given, scale=1.0), 4, 2).output.distribution.condition[:, 0]
    null = target.start(captions([1, 2]).of(Condition(target.model.cls_embedding.null(2), given.mask), 1.0), 4, 2)
    with torch.no_grad():
        v, away = head(x, 1, told), head(x, 1, null.output.distribution.condition[:, 0])
    wanted = head.carry[1] * x - head.gain[1] * (away + 2.5 * (v - away))
    torch.testing.assert_close(target.head.mean(x, 1, distribution.condition[:, 0]), wanted, rtol=1e-4, atol=1e-4)


def test_guidance_that_cannot_be_is_refused(targets):
    with pytest.raises(ValueError, match="Gaussian mixture is refused: the guided distribution is no mixture"):
        targets["gaussian-mixture"].start(captions([0], 2.0), 4, 2)
    without = ContinuousTarget(tiny(null_caption=False))
    with pytest.raises(ValueError, match="without a null caption"):
        without.start(captions([0], 2.0), 4, 2)
    assert without.start(captions([0]), 4, 2).output.distribution.condition.shape[:2] == (1, 1)


@pytest.mark.parametrize("sigma", [0.0, -0.1, float("nan")])
def test_a_noiseless_last_step_is_refused(sigma):
    with pytest.raises(ValueError, match=r"all tokens, denoising step 2 of 3 \(the last one\): sigma is"):
        ContinuousTarget(tiny(sigma_0=sigma))


def test_latents_that_are_not_finite_are_named():
    target = ContinuousTarget(tiny())
    target.model.token_head.steps.data[1] = float("nan")
    with pytest.raises(ValueError, match="row 0: new unit 0: the latent of denoising step 1 of 3 is not finite"):
        Decoder(target, ContinuousJacobi(), Rejection(), k=2).generate(captions([0]), 4)
    target.model.token.weight.data.fill_(float("nan"))
    target.model.token_head.steps.data.fill_(0.1)
    with pytest.raises(ValueError, match="row 0: new unit 1: the condition of the denoising head is not finite"):
        Decoder(target, None, Rejection()).generate(captions([0]), 4)


@pytest.mark.parametrize(
    ("other", "told"),
    [
        (dict(token_dim=3), "numbers of a token: the draft model has 3, the target 2"),
        (dict(grid=5), "tokens per side .the patching.: the draft model has 5, the target 7"),
        (dict(steps=2), "denoising steps: the draft model has 2, the target 3"),
        (dict(sigma_0=0.2), "sigma_0: the draft model has 0.2, the target 0.3"),
        (dict(latents=(1.0, 2.0)), "scales of the autoencoder's latents"),
        (dict(head="gaussian-mixture"), "head: the draft model has gaussian-mixture, the target diffusion"),
    ],
)
def test_draft_models_of_other_tokens_are_refused(targets, other, told):
    drafter = ContinuousDraftModel(DraftModelOptions(model=tiny(**other)))
    with pytest.raises(ValueError, match=told):
        Decoder(targets["diffusion"], drafter, Rejection())


def test_draft_models_have_to_be_given():
    with pytest.raises(ValueError, match=r"a smaller CausalContinuousAR is needed, model=…; none was given"):
        ContinuousDraftModel()
    with pytest.raises(ValueError, match="this is a Linear"):
        ContinuousDraftModel(DraftModelOptions(model=torch.nn.Linear(1, 1)))


def test_more_tokens_than_a_picture_has(targets):
    with pytest.raises(ValueError, match="a picture of this model has 49 tokens, 50 were asked for"):
        targets["diffusion"].start(captions([0]), 50, 2)
