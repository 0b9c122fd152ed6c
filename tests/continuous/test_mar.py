"""MAR: official files, the denoising chain, and the published sampler (`parity/mar_sampling.py`)."""

import argparse
from itertools import pairwise
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from scipy import stats

from mmspec.core.philox import PhiloxNoise, PhiloxSource
from mmspec.testing.parity import read
from mmspec_continuous.models.adaln_head import DiffusionHead
from mmspec_continuous.models.ddpm import respaced
from mmspec_continuous.models.mar import MARTransformer
from mmspec_continuous.models.mar_official import SIZES
from tests.continuous.parity import mar_sampling
from tests.continuous.parity.mar_sampling import (
    SetSampler,
    denoised,
    guidance_at,
    random_orders,
    sample,
    unknown_counts,
)

FIXTURES = Path(__file__).parent / "parity"
KNOWN = {"encoder_num_heads": 2, "decoder_num_heads": 3, "vae_stride": 4, "patch_size": 2}
CELLS, TOKEN = 16, 8
QUICK = dict(num_iter=3, num_sampling_steps=2)
ROWS = 2000


@pytest.fixture(scope="module")
def state():
    return read(FIXTURES / "mar.safetensors")[0]


@pytest.fixture(scope="module")
def tiny(state):
    return MARTransformer.from_official(state, **KNOWN)


@pytest.fixture
def published(monkeypatch):
    """The independent implementation of the published maths."""
    monkeypatch.syspath_prepend(FIXTURES)
    import published_mar

    return published_mar


def holds(model, state):
    own = model.state_dict()
    return own.keys() == state.keys() and all(torch.equal(own[key], value) for key, value in state.items())


def test_the_moving_average_of_a_checkpoint_is_taken(state, tmp_path, recwarn):
    last = {key: value + 1 for key, value in state.items()}
    checkpoint = {"model": last, "model_ema": state, "optimizer": {"state": {}}, "epoch": 399}
    assert holds(MARTransformer.from_official(checkpoint, **KNOWN), state)
    arguments = argparse.Namespace(model="mar_base", lr=1e-4)  # official files hold one, which torch refuses by itself
    torch.save({**checkpoint, "args": arguments}, tmp_path / "checkpoint-last.pth")
    model = MARTransformer.from_official(tmp_path / "checkpoint-last.pth", **KNOWN)
    assert holds(model, state) and not model.training and not [w for w in recwarn if "model_ema" in str(w.message)]
    with pytest.warns(UserWarning, match="there is no model_ema in it: these are the weights of the last step"):
        assert holds(MARTransformer.from_official({"model": last}, **KNOWN), last)


def test_sizes_are_read_from_shapes(state, tiny, tmp_path):
    config = read(FIXTURES / "mar.safetensors")[2]
    assert {key: tiny.config[key] for key in config if key != "num_sampling_steps"} == {
        key: value for key, value in config.items() if key != "num_sampling_steps"
    }
    tiny.save_pretrained(tmp_path)
    assert holds(MARTransformer.from_pretrained(tmp_path), state)


@pytest.mark.parametrize(("size", "millions"), [("base", 207.92), ("large", 478.33), ("huge", 942.40)])
def test_published_sizes_have_their_parameters(size, millions):
    with torch.device("meta"):
        model = MARTransformer(**SIZES[size])
    assert sum(p.numel() for p in model.parameters()) / 1e6 == pytest.approx(millions, abs=0.01)


def test_the_published_base_has_its_keys_and_its_heads():
    with torch.device("meta"):
        state = MARTransformer(**SIZES["base"] | {"diffloss_d": 3}).state_dict()
        again = MARTransformer.from_official(state)
    assert len(state) == 340 and sum(t.numel() for t in state.values()) / 1e6 == pytest.approx(192.17, abs=0.01)
    assert state["diffloss.net.res_blocks.2.adaLN_modulation.1.weight"].shape == (3072, 1024)
    assert again.config.items() >= (SIZES["base"] | {"diffloss_d": 3, "class_num": 1000, "img_size": 256}).items()


def test_what_does_not_fit_is_refused(state, tmp_path):
    with pytest.raises(ValueError, match="width 16 is no published size: say encoder_num_heads="):
        MARTransformer.from_official(state)
    with pytest.raises(ValueError, match="8 numbers are no 3 × 3 patches"):
        MARTransformer.from_official(state, **KNOWN | {"patch_size": 3})
    with pytest.raises(ValueError, match="5 heads do not divide a width of 16"):
        MARTransformer.from_official(state, **KNOWN | {"encoder_num_heads": 5})
    with pytest.raises(ValueError, match="30 pixels are no multiple of a token's 16"):
        MARTransformer(img_size=30)
    with pytest.raises(ValueError, match=r"1 keys missing \(mask_token\)"):
        MARTransformer.from_official({k: v for k, v in state.items() if k != "mask_token"}, **KNOWN)
    hurt = {**state, "strange": torch.zeros(1), "fake_latent": torch.zeros(1, 4)}
    with pytest.raises(ValueError, match=r"unexpected \(strange\).*shape \(fake_latent: \[1, 4\], not \[1, 16\]"):
        MARTransformer.from_official(hurt, **KNOWN)
    with pytest.raises(ValueError, match="no weights of a MAR transformer"):
        MARTransformer.from_official({"x": torch.zeros(1)})
    with pytest.raises(ValueError, match="there is no file"):
        MARTransformer.from_official("nowhere.pth")
    torch.save({"model_ema": Evil()}, tmp_path / "evil.pth")
    with pytest.raises(ValueError, match=r"evil.pth: it holds objects beside its weights .*, which can run code"):
        MARTransformer.from_official(tmp_path / "evil.pth", **KNOWN)


class Evil:
    def __reduce__(self):
        return (print, ("run",))


def test_unknown_tokens_have_no_influence_and_known_ones_do(tiny):
    tokens = torch.randn(2, CELLS, TOKEN, generator=torch.Generator().manual_seed(1))
    unknown = (torch.arange(CELLS) % 3 > 0).expand(2, -1)
    condition = tiny.condition(torch.tensor([0, 3]))
    with torch.no_grad():
        told = tiny(tokens, unknown, condition)
        assert torch.equal(tiny(tokens.masked_fill(unknown[..., None], torch.nan), unknown, condition), told)
        other = tiny(tokens + ~unknown[..., None], unknown, condition)
        assert (other - told).abs().amax(-1).min() > 1e-3, "every cell is told of the known ones"
    with pytest.raises(ValueError, match=r"know equally many tokens; these know \[16, 15\]"):
        tiny(tokens, torch.eye(CELLS).bool()[:2] & torch.tensor([[False], [True]]), condition)


def test_tokens_become_latents(tiny):
    tokens = torch.randn(2, CELLS, TOKEN)
    patches = tokens.mT.unflatten(2, (4, 4))  # a channel, and in it the patch's rows and columns
    assert torch.equal(mar_sampling.unpatchify(tiny, tokens), F.pixel_shuffle(patches, 2))


@pytest.mark.parametrize("steps", [2, 10, 100])
def test_the_chain_is_the_published_one(published, steps):
    chain = respaced(steps)
    assert list(chain.times) == published.times(steps) and len(chain) == steps
    x, out = torch.randn(5, 9, generator=torch.Generator().manual_seed(1)).split([3, 6], 1)
    for step in {0, 1, steps // 2, steps - 1}:
        for ours, theirs in zip(chain.posterior(x, out, step), published.posterior(steps, step, x, out), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)
    for wrong in (1, 1001):
        with pytest.raises(ValueError, match="has 2 to 1000 steps"):
            respaced(wrong)


class LinearNoise(torch.nn.Module):
    """A network whose chain stays Gaussian: noise = slope · x + 0.3, log-variances a quarter up their range."""

    def forward(self, x, time, z):
        return torch.cat([(0.2 + time[:, None] / 2000) * x + 0.3, torch.full_like(x, -0.5)], -1)


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_a_gaussian_chain_ends_in_its_distribution_and_adds_no_noise_last(published, temperature):
    steps, rows = 6, 20_000
    head = DiffusionHead(1, 4, 8, 1)
    head.net = LinearNoise()
    generator, asked = torch.Generator().manual_seed(3), []

    def normal(index):
        asked.append(index)
        return torch.randn(rows, 1, generator=generator)

    drawn = denoised(head, torch.zeros(rows, 4), respaced(steps), normal, temperature=temperature)[:, 0].double()
    assert asked == [6, 5, 4, 3, 2, 1], "the start, and every step but the last"
    mean, variance, ends = 0.0, 1.0, torch.tensor([[0.0], [1.0]])
    for step in reversed(range(steps)):
        out = LinearNoise()(ends, torch.full((2,), published.times(steps)[step]), None)
        (at0, at1), log_variance = published.posterior(steps, step, ends, out)
        slope = float(at1 - at0)
        added = temperature**2 * float(log_variance[0].exp()) if step else 0.0
        mean, variance = slope * mean + float(at0), slope**2 * variance + added
    assert stats.kstest(drawn, "norm", (mean, variance**0.5)).pvalue > 1e-3
    assert stats.kstest(drawn, "norm", (mean, (variance * 1.1) ** 0.5)).pvalue < 1e-3, "what it can tell apart"


def test_guidance_moves_the_noise_only_and_one_is_none(tiny):
    net, generator = tiny.diffloss.net, torch.Generator().manual_seed(4)
    x, z, null = (torch.randn(6, n, generator=generator) for n in (TOKEN, 24, 24))
    time = torch.arange(6) * 100
    with torch.no_grad():
        given, free = net(x, time, z), net(x, time, null)
        torch.testing.assert_close(net.guided(x, time, z, null, 1.0), given)
        guided = net.guided(x, time, z, null, 3.0)
    torch.testing.assert_close(guided[:, :TOKEN], free[:, :TOKEN] + 3 * (given - free)[:, :TOKEN])
    torch.testing.assert_close(guided[:, TOKEN:], given[:, TOKEN:])
    key = PhiloxSource.seeded(7, 2).key
    context, cells = (torch.zeros(2, CELLS, TOKEN), torch.ones(2, CELLS).bool()), torch.tensor([[3, 8], [1, 0]])
    labels = torch.tensor([2, 4])
    with torch.no_grad():
        plain = SetSampler(tiny, labels, key, 3).draw(*context, cells)
        both = SetSampler(tiny, labels, key, 3, guided=True)
        torch.testing.assert_close(both.draw(*context, cells, scale=1.0), plain, rtol=1e-4, atol=1e-4)
        nobody = SetSampler(tiny, None, key, 3).draw(*context, cells)
        # At scale 0 the noise is the null class's, the variance still the class's: equal where no noise is added.
        still = SetSampler(tiny, labels, key, 3, True, 0.0).draw(*context, cells, scale=0.0)
        torch.testing.assert_close(still, SetSampler(tiny, None, key, 3, temperature=0.0).draw(*context, cells))
    assert (nobody - plain).abs().max() > 0.01


def test_the_mask_schedule_and_the_growth_of_guidance():
    assert unknown_counts(256, 4) == [256, 236, 181, 97, 0]  # 256 · cos of 22.5, 45, 67.5 degrees
    assert unknown_counts(4, 4) == [4, 3, 2, 1, 0]
    assert unknown_counts(16, 1) == [16, 0]
    full = unknown_counts(256, 256)
    assert all(after < before for before, after in pairwise(full)) and full[-2] == 1
    assert [guidance_at(3.0, left, 256, "linear") for left in (236, 97, 0)] == pytest.approx(
        [1 + 2 * 20 / 256, 1 + 2 * 159 / 256, 1 + 2 * 255 / 256]
    )
    assert guidance_at(3.0, 236, 256, "constant") == 3.0
    for wrong in (0, 257):
        with pytest.raises(ValueError, match="256 tokens are drawn in 1 to 256 steps"):
            unknown_counts(256, wrong)


def test_orders_are_random_permutations():
    orders = random_orders(PhiloxSource.seeded(0, 6000).key, 3)
    assert torch.equal(orders.sort(1).values, torch.arange(3).expand(6000, -1))
    counts = torch.bincount(orders[:, 0] * 3 + orders[:, 1])
    assert stats.chisquare(counts[counts > 0]).pvalue > 1e-3 and (counts > 0).sum() == 6


def test_a_picture_is_the_published_one_for_its_noise(state, tiny, published):
    how = dict(num_iter=3, num_sampling_steps=3, guidance_scale=2.0, temperature=0.8)
    made = sample(tiny, [1, 4], seed=[21, 22], **how)
    assert not torch.allclose(sample(tiny, [1, 4], seed=[21, 22], guidance_growth="constant", **how), made)
    config = read(FIXTURES / "mar.safetensors")[2]
    key = PhiloxSource.seeded([21, 22], 2).key
    order = random_orders(key, CELLS)[1]

    def normal(cell, index):
        return PhiloxNoise(key[1:], torch.tensor([[cell]]), torch.tensor([[index]])).normal(TOKEN)[0, 0]

    wanted = published.sampled(state, config, 4, order, normal, 3, 3, 2.0, "linear", 0.8)
    torch.testing.assert_close(made[1], wanted, rtol=1e-3, atol=1e-3)


def test_a_row_does_not_depend_on_its_batch(tiny):
    how = QUICK | {"guidance_scale": 1.5}
    batch, alone = sample(tiny, [0, 3, 2], seed=[5, 6, 7], **how), sample(tiny, [3], seed=[6], **how)
    torch.testing.assert_close(alone[0], batch[1], rtol=1e-3, atol=1e-3)
    generators = [torch.Generator().manual_seed(i) for i in (1, 2)]
    again = [torch.Generator().manual_seed(i) for i in (2, 1)]
    first, second = (sample(tiny, [3, 3], generator=g, **QUICK) for g in (generators, again))
    torch.testing.assert_close(first, second.flip(0), rtol=1e-4, atol=1e-4)
    assert (first[0] - first[1]).abs().max() > 0.1


class Denoiser(torch.nn.Module):
    """A network with the exact noise of tokens N(a linear function of its condition, 0.3²)."""

    def __init__(self, kept):
        super().__init__()
        self.means = torch.randn(24, TOKEN, generator=torch.Generator().manual_seed(2))
        self.kept = {time: kept(time) for time in respaced(3).times}

    def forward(self, x, time, z):
        kept = self.kept[int(time[0])]
        noise = (1 - kept) ** 0.5 * (x - kept**0.5 * z @ self.means) / (1 - kept + 0.09 * kept)
        return torch.cat([noise, torch.zeros_like(x)], -1)


class Siblings:
    """Cells drawn in one step, in many rows that have the same context and differ in their noise only."""

    def __init__(self, model):
        generator = torch.Generator().manual_seed(8)
        self.tokens = torch.randn(1, CELLS, TOKEN, generator=generator).expand(ROWS, -1, -1)
        self.unknown = (torch.arange(CELLS) >= 6).expand(ROWS, -1)
        self.sampler = SetSampler(model, torch.full((ROWS,), 2), PhiloxSource.seeded(9, ROWS).key, 3)

    @torch.no_grad()
    def draw(self, *cells, knowing=None):
        """Tokens of cells; `knowing`: tokens of cell 9, which then is known."""
        tokens, unknown = self.tokens, self.unknown
        if knowing is not None:
            tokens, unknown = tokens.clone(), unknown.clone()
            tokens[:, 9], unknown[:, 9] = knowing, False
        return self.sampler.draw(tokens, unknown, torch.tensor(cells).expand(ROWS, -1))


def dependence(a, b):
    """The largest rank correlation of a number of a with one of b, in standard deviations; and a χ² test's p-value."""
    ranks = [t.argsort(0).argsort(0).double() for t in (a, b)]
    correlations = torch.corrcoef(torch.cat(ranks, 1).T)[:TOKEN, TOKEN:]
    row, column = divmod(int(correlations.abs().argmax()), TOKEN)
    quarters = [(r[:, i] * 4 // ROWS).long() for r, i in zip(ranks, (row, column), strict=True)]
    table = torch.bincount(quarters[0] * 4 + quarters[1], minlength=16).reshape(4, 4)
    return float(correlations.abs().max()) * ROWS**0.5, stats.chi2_contingency(table).pvalue


def test_siblings_are_independent_given_their_context(state, published, monkeypatch):
    model = MARTransformer.from_official(state, **KNOWN)
    model.diffloss.net = Denoiser(published.kept)
    siblings = Siblings(model)
    a, b = siblings.draw(9, 13).unbind(1)
    deviations, p = dependence(a, b)
    assert deviations < 4.5 and p > 1e-4 / TOKEN**2
    torch.testing.assert_close(siblings.draw(13, 7, 9)[:, ::2], torch.stack([b, a], 1), rtol=1e-4, atol=1e-4)
    later = siblings.draw(13, knowing=a)[:, 0]
    assert dependence(a, later)[0] > 10, "what is drawn a step later depends on it"

    def one_noise_for_all(key, address):
        return PhiloxNoise(key, torch.zeros_like(address), torch.zeros_like(key[:, :1]))

    monkeypatch.setattr(mar_sampling, "_noise", one_noise_for_all)
    assert dependence(*siblings.draw(9, 13).unbind(1))[0] > 10, "noise by row alone is a bug that is seen"


def test_what_cannot_be_sampled_is_refused(tiny, state):
    for wrong in ([5], [-1], [0.5], [], [[1]]):
        with pytest.raises(ValueError, match="labels are integers from 0 to 4"):
            sample(tiny, wrong, **QUICK)
    with pytest.raises(ValueError, match="guidance_growth is one of linear, constant, not 'cosine'"):
        sample(tiny, [1], guidance_growth="cosine", **QUICK)
    with pytest.raises(ValueError, match="temperature is not negative"):
        sample(tiny, [1], temperature=-1.0, **QUICK)
    with pytest.raises(ValueError, match="2 seeds for 1 pictures"):
        sample(tiny, [1], seed=[1, 2], **QUICK)
    broken = MARTransformer.from_official(state, **KNOWN)
    broken.class_emb.weight.data[3] = torch.nan
    first = int(random_orders(PhiloxSource.seeded(0, 2).key, CELLS)[1, -1])
    with pytest.raises(ValueError, match=rf"picture 1: token {first} \(drawn as number 1 of 16\) is not finite"):
        sample(broken, [1, 3], seed=0, **QUICK)
