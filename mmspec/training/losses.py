"""Losses of language models and of drafters.

A drafter's loss compares its distribution q with the target's p at every row, and divides by the rows that count. All
kinds are one function, so that a recipe names its loss as data:

| kind | per row | paper |
|---|---|---|
| `kl` | KL(p ‖ q) | DistillSpec (arXiv 2310.08461); EAGLE-3's, less a constant |
| `reverse-kl` | KL(q ‖ p) | DistillSpec |
| `jsd` | β KL(p ‖ m) + (1 − β) KL(q ‖ m), m = β p + (1 − β) q | DistillSpec; β → 0, divided by β: `kl` |
| `tv` | 1 − Σ min(p, q) | DistillSpec |
| `tv++` | the gradient of `tv` with standardised rewards | Direct alignment (arXiv 2403.00858), § 3.3 |
| `alpha` | −log Σ min(p, q) | LK losses (arXiv 2602.23881); slope ∇TV / α, so that it learns from a cold start |
| `lk` | w KL(p ‖ q) + (1 − w) TV, w = exp(−η α) | LK losses |
| `hard` | −log q(unit) | Medusa, FastMTP |

Exact rules accept with probability α = Σ min(p, q). Where a drafter scores a part of the vocabulary, p is given over
that part and sums to less than 1: α counts it as it is, and the others normalise it.
"""

import math
from dataclasses import dataclass
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmspec.registry.suggest import unknown

Kind = Literal["kl", "reverse-kl", "jsd", "tv", "tv++", "alpha", "lk", "hard"]
KINDS: tuple[Kind, ...] = get_args(Kind)
_TINY = 1e-8


@dataclass(frozen=True)
class DraftLoss:
    """The loss, and the weight of every depth of a draft. A kind that there is not is a `ValueError`."""

    kind: Kind = "kl"  # see the module
    hard: float = 0.0  # share of −log q(unit) beside it, in [0, 1]
    decay: float = 0.8  # depth d counts `decay ** d`; below 1 the first units matter more
    beta: float = 0.5  # of `jsd`
    eta: float = 3.0  # of `lk`: larger ones leave `kl` sooner
    features: float = 0.0  # weight of `feature_loss` beside it, of heads that predict features

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(unknown("loss", self.kind, KINDS))


@dataclass(frozen=True)
class Top:
    """The likeliest units of distributions, whose other units count as impossible."""

    p: Tensor  # `[…, k]`: their probabilities, which may sum to less than 1
    ids: Tensor  # `[…, k]` int64: the units

    def dense(self, vocab: int) -> Tensor:
        """Over all of so many units, `[…, vocab]`."""
        return self.p.new_zeros(*self.p.shape[:-1], vocab).scatter(-1, self.ids, self.p)


def draft_loss(
    logits: Tensor,
    p: Tensor | Top,
    mask: Tensor,
    depth: int = 0,
    loss: DraftLoss = DraftLoss(),
    units: Tensor | None = None,
) -> Tensor:
    """The loss of a drafter at one depth, a float32 scalar: the mean over the rows that count, 0 if there is none,
    times the weight of the depth (the units of the draft before these).

    Logits are the drafter's, `[…, row, vocab]`; `p` is the target's distribution over the same ids, `[…, row, vocab]`,
    or the top of it, into which no gradient flows; `mask […, row]` bool says which rows count. `units […, row]` int64
    are the text's, -1 where the drafter has no such id, for the hard part; refuses a loss that lacks them.
    """
    hard, logits = 1.0 if loss.kind == "hard" else loss.hard, logits.float()
    total, norm = logits.new_zeros(()), logits.logsumexp(-1, keepdim=True)
    if hard < 1:
        total = (1 - hard) * _mean(_rows(logits, norm, p, mask, loss), mask)
    if hard > 0:
        if units is None:
            raise ValueError(f"the loss {loss.kind!r} with hard={hard:g} needs the text's units")
        right = (norm - logits.gather(-1, units.clamp(min=0)[..., None]))[..., 0]
        total = total + hard * _mean(right, mask & (units >= 0))
    return loss.decay**depth * total


def feature_loss(predicted: Tensor, features: Tensor, mask: Tensor, squared: bool = False) -> Tensor:
    """The smooth L1 distance of predicted features `[…, row, width]` from the target's: the mean over the rows that
    count (`mask […, row]` bool), a float32 scalar (EAGLE, arXiv 2401.15077, § 3.2; FSPAD, 2408.15562). `squared`: the
    mean squared difference, which is the latent consistency loss of gated LoRA (2507.11851) over the width.
    """
    distance = F.mse_loss if squared else F.smooth_l1_loss
    return _mean(distance(predicted.float(), features.float(), reduction="none").mean(-1), mask)


def forward_kl(logits: Tensor, p: Tensor | Top) -> Tensor:
    """KL(p ‖ q) at every row, `[…, row]` float32, of a drafter's logits and the target's p; p is normalised."""
    logits = logits.float()
    p, log_q = _where_likely(logits, logits.logsumexp(-1, keepdim=True), p)
    return _kl(_normalised(p), log_q)


def acceptance(logits: Tensor, p: Tensor) -> Tensor:
    """α = Σ min(p, q) at every row: how often an exact rule accepts a unit that was drawn from q."""
    return torch.minimum(logits.float().softmax(-1), p).sum(-1)


def next_token(logits: Tensor, ids: Tensor) -> Tensor:
    """The mean cross-entropy of the next token, in nats: of logits `[batch, length, vocab]`, ids `[batch, length]`."""
    return F.cross_entropy(logits[:, :-1].float().flatten(0, 1), ids[:, 1:].flatten())


def _rows(logits: Tensor, norm: Tensor, p: Tensor | Top, mask: Tensor, loss: DraftLoss) -> Tensor:
    if loss.kind in ("kl", "tv", "alpha", "lk"):  # units that are impossible under p change none of these
        p, log_q = _where_likely(logits, norm, p)
        if loss.kind == "kl":
            return _kl(_normalised(p), log_q)
        alpha = torch.minimum(p, log_q.exp()).sum(-1)
        if loss.kind == "tv":
            return 1 - alpha
        if loss.kind == "alpha":
            return -alpha.clamp(min=_TINY).log()
        w = torch.exp(-loss.eta * alpha.detach())
        return w * _kl(_normalised(p), log_q) + (1 - w) * (1 - alpha)
    p = (p.dense(logits.shape[-1]) if isinstance(p, Top) else p).detach().float()
    log_q = logits - norm
    if loss.kind == "tv++":
        return _standardised(log_q, log_q.exp().detach(), p, mask)
    p = _normalised(p)
    log_p = p.clamp(min=_TINY).log()
    if loss.kind == "reverse-kl":
        return (log_q.exp() * (log_q - log_p)).sum(-1)
    beta, q = loss.beta, log_q.exp()
    log_m = (beta * p + (1 - beta) * q).clamp(min=_TINY).log()
    return beta * (p * (log_p - log_m)).sum(-1) + (1 - beta) * (q * (log_q - log_m)).sum(-1)


def _where_likely(logits: Tensor, norm: Tensor, p: Tensor | Top) -> tuple[Tensor, Tensor]:
    """p and log q, both `[…, unit]` float32: of all units, or of p's top; `norm` is the logarithm of Σ exp(logits)."""
    if isinstance(p, Top):
        return p.p.detach().float(), logits.gather(-1, p.ids) - norm
    return p.detach().float(), logits - norm


def _standardised(log_q: Tensor, q: Tensor, p: Tensor, mask: Tensor) -> Tensor:
    """Minus the expected advantage: reward 1 where p > q, standardised over the rows that count, over all units."""
    reward = (p > q).float()
    mean = _mean((q * reward).sum(-1), mask)
    spread = _mean((q * (reward - mean).square()).sum(-1), mask).sqrt()
    return -(q * (reward - mean) / (spread + _TINY) * log_q).sum(-1)


def _kl(p: Tensor, log_q: Tensor) -> Tensor:
    return torch.special.xlogy(p, p).sum(-1) - (p * log_q).sum(-1)


def _normalised(p: Tensor) -> Tensor:
    return p / p.sum(-1, keepdim=True).clamp(min=_TINY)


def _mean(rows: Tensor, mask: Tensor) -> Tensor:
    """The mean of the rows that count; a row that does not may hold anything."""
    return torch.where(mask, rows, 0).sum() / mask.sum().clamp(min=1)


@dataclass(frozen=True)
class TokenFilter:
    """AdaSPEC's token filter (arXiv 2510.19779): a small drafter learns what it can learn, and leaves the rest.

    A reference is a drafter of the same kind that was distilled from the target by forward KL before. At every token
    Δ = KL(p ‖ q) of the drafter less KL(p ‖ q) of the reference: how much it still has to learn there. Of a batch's
    tokens the share k with the largest Δ counts (the paper: k = 0.4; the smaller, the choosier; 1: all).
    """

    reference: nn.Module  # the reference, which is not trained any more
    share: float  # k, above 0 and at most 1

    @torch.no_grad()
    def kept(self, logits: Tensor, reference: Tensor, p: Tensor | Top, mask: Tensor) -> Tensor:
        """The rows that still count, `[…, row]` bool, of those that count without the filter (`mask`).

        Logits are the drafter's and the reference's, `[…, row, vocab]`; `p` is the target's distribution over the same
        ids, or the top of it.
        """
        return largest(forward_kl(logits, p) - forward_kl(reference, p), mask, self.share)


def largest(values: Tensor, mask: Tensor, share: float) -> Tensor:
    """The ceil(share · n) largest of the n values in a mask, as a mask of the same shape: by their ranks, since torch
    has no quantile of more than 2 ** 24 numbers, and it takes all equal values.
    """
    wanted = math.ceil(share * int(mask.sum()) - 1e-9)
    inside = torch.where(mask, values, -torch.inf).flatten()
    best = inside.topk(wanted).indices
    return torch.zeros_like(mask).flatten().index_fill(0, best, True).view_as(mask)
