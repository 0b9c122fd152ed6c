"""Losses of drafters: zero only where the distributions are equal, known limits and gradients, masks, depths."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from mmspec.training.losses import KINDS, DraftLoss, Kind, Top, acceptance, draft_loss, forward_kl, next_token

ROWS, VOCAB = 6, 5
ALL = torch.ones(ROWS, dtype=torch.bool)


def drawn(seed: int, sharp: float = 1.5) -> Tensor:
    return sharp * torch.randn(ROWS, VOCAB, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).float()


def gradient(kind: str, logits: Tensor, p: Tensor, mask: Tensor = ALL, **options: float) -> Tensor:
    logits = logits.clone().requires_grad_()
    units = p.argmax(-1)
    draft_loss(logits, p, mask, 0, DraftLoss(kind, **options), units).backward()  # type: ignore[arg-type]
    assert logits.grad is not None
    return logits.grad


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in ("tv++", "hard")])
def test_a_loss_is_zero_where_the_distributions_are_equal_and_positive_elsewhere(kind: str) -> None:
    logits, p = drawn(0), drawn(1).softmax(-1)
    loss = DraftLoss(kind)  # type: ignore[arg-type]
    assert abs(float(draft_loss(logits, logits.softmax(-1), ALL, loss=loss))) < 1e-5
    assert float(draft_loss(logits, p, ALL, loss=loss)) > 0.05


def test_kinds_are_what_torch_computes() -> None:
    logits, p = drawn(0), drawn(1).softmax(-1)
    log_q, log_p = logits.log_softmax(-1), p.log()
    kl = torch.nn.functional.kl_div(log_q, log_p, log_target=True, reduction="batchmean")
    reverse = torch.nn.functional.kl_div(log_p, log_q, log_target=True, reduction="batchmean")
    tv = 0.5 * (log_q.exp() - p).abs().sum(-1).mean()
    alpha = acceptance(logits, p)
    middle = (0.3 * p + 0.7 * log_q.exp()).log()
    jsd = 0.3 * (p * (log_p - middle)).sum(-1) + 0.7 * (log_q.exp() * (log_q - middle)).sum(-1)
    w = torch.exp(-3 * alpha)
    lk = w * (p * (log_p - log_q)).sum(-1) + (1 - w) * (1 - alpha)
    hard = torch.nn.functional.cross_entropy(logits, p.argmax(-1))
    expected = {"kl": kl, "reverse-kl": reverse, "tv": tv, "alpha": -alpha.log().mean(), "lk": lk.mean(), "hard": hard}
    for kind, value in {**expected, "jsd": jsd.mean()}.items():
        found = draft_loss(logits, p, ALL, 0, DraftLoss(kind, beta=0.3), p.argmax(-1))  # type: ignore[arg-type]
        assert torch.allclose(found, value, atol=1e-6), kind
    assert torch.allclose(1 - alpha.mean(), tv, atol=1e-6)
    mixed = draft_loss(logits, p, ALL, 0, DraftLoss("kl", hard=0.25), p.argmax(-1))
    assert torch.allclose(mixed, 0.75 * kl + 0.25 * hard, atol=1e-6)


def test_jsd_becomes_kl_in_either_direction_in_its_limits() -> None:
    logits, p = drawn(0), drawn(1).softmax(-1)
    for beta, kind in ((1e-3, "kl"), (1 - 1e-3, "reverse-kl")):
        jsd = draft_loss(logits, p, ALL, loss=DraftLoss("jsd", beta=beta))
        other = draft_loss(logits, p, ALL, loss=DraftLoss(kind))  # type: ignore[arg-type]
        assert torch.allclose(jsd / min(beta, 1 - beta), other, rtol=2e-2)


def test_the_slope_of_alpha_is_that_of_tv_over_alpha() -> None:
    """So a drafter learns from rows where it has almost no mass in common with the target."""
    logits, p = drawn(0)[:1], drawn(1)[:1].softmax(-1)
    one = ALL[:1]
    alpha = float(acceptance(logits, p))
    assert torch.allclose(gradient("alpha", logits, p, one), gradient("tv", logits, p, one) / alpha, atol=1e-6)


def test_standardised_rewards_have_the_direction_of_tv() -> None:
    """Over one row a mean and a spread change the length of the gradient and not its direction."""
    logits, p = drawn(0)[:1], drawn(1)[:1].softmax(-1)
    standardised, plain = gradient("tv++", logits, p, ALL[:1]), gradient("tv", logits, p, ALL[:1])
    assert torch.cosine_similarity(standardised, plain) > 1 - 1e-5
    q = logits.softmax(-1)
    reward = (p > q).float()
    spread = ((q * reward).sum() * (1 - (q * reward).sum())).sqrt()
    assert torch.allclose(standardised, plain / spread, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_rows_that_do_not_count_change_nothing(kind: str) -> None:
    logits, p = drawn(0), drawn(1).softmax(-1)
    kept = torch.tensor([True, False, True, True, False, False])
    broken = logits.clone()
    broken[~kept] = 1e4
    units = p.argmax(-1)
    loss = DraftLoss(kind)  # type: ignore[arg-type]
    found = draft_loss(broken, p, kept, 0, loss, units)
    assert torch.allclose(found, draft_loss(logits[kept], p[kept], ALL[:3], 0, loss, units[kept]), atol=1e-6)
    assert bool((gradient(kind, logits, p, kept)[~kept] == 0).all())
    assert float(draft_loss(logits, p, ~ALL, 0, loss, units)) == 0


def test_depths_count_less_and_less() -> None:
    logits, p = drawn(0), drawn(1).softmax(-1)
    loss = DraftLoss("kl", decay=0.5)
    first = draft_loss(logits, p, ALL, 0, loss)
    assert torch.allclose(draft_loss(logits, p, ALL, 2, loss), first / 4)


def test_a_part_of_the_vocabulary() -> None:
    """α counts the mass that a drafter cannot reach; a divergence compares the two distributions over its own ids."""
    logits, p = drawn(0), drawn(1).softmax(-1)
    own = torch.tensor([0, 2, 3])
    part = p[:, own]
    same = part.log()
    assert torch.allclose(acceptance(same, part), part.sum(-1))
    assert abs(float(draft_loss(same, part, ALL))) < 1e-5
    alpha = draft_loss(logits[:, own], part, ALL, loss=DraftLoss("tv"))
    assert torch.allclose(1 - alpha, torch.minimum(logits[:, own].softmax(-1), part).sum(-1).mean())
    units = torch.tensor([0, -1, 2, 1, -1, 0])  # some units have no id of the drafter's
    hard = draft_loss(logits[:, own], part, ALL, 0, DraftLoss("hard"), units)
    known = units >= 0
    expected = torch.nn.functional.cross_entropy(logits[:, own][known], units[known])
    assert torch.allclose(hard, expected, atol=1e-6)


def test_a_hard_part_needs_units() -> None:
    with pytest.raises(ValueError, match=r"'kl' with hard=0\.1 needs the text's units"):
        draft_loss(drawn(0), drawn(1).softmax(-1), ALL, loss=replace(DraftLoss(), hard=0.1))


def test_next_tokens() -> None:
    states = drawn(0)
    ids = torch.arange(ROWS)[None] % VOCAB
    assert torch.allclose(next_token(states[None], ids), torch.nn.functional.cross_entropy(states[:-1], ids[0, 1:]))


@pytest.mark.parametrize("kind", KINDS)
def test_the_top_of_a_distribution(kind: Kind) -> None:
    """All of it is the distribution; a part of it is one in which other units are impossible."""
    logits, p = drawn(0).requires_grad_(), drawn(1).softmax(-1)
    units = p.argmax(-1)
    for count in (p.shape[-1], 3):
        top = Top(*p.topk(count))
        assert torch.allclose(top.dense(p.shape[-1]), p if count > 3 else torch.where(p >= top.p[..., -1:], p, 0))
        losses = [draft_loss(logits, of, ALL, 1, DraftLoss(kind), units) for of in (top, top.dense(p.shape[-1]))]
        gradients = [torch.autograd.grad(one, logits)[0] for one in losses]
        assert torch.allclose(*losses, atol=1e-6) and torch.allclose(*gradients, atol=1e-6)
        assert torch.allclose(forward_kl(logits, top), forward_kl(logits, top.dense(p.shape[-1])), atol=1e-6)
