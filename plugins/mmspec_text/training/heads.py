"""Training of a head of any kind: the ids that it scores, the loss along its drafts, what it is on held-out text.

The loss is that of a head which is unrolled over a text (EAGLE-3, arXiv 2503.01840, § 3.1): at every depth of a draft,
its distribution is compared with what the target says behind the same units.

A head with a smaller vocabulary scores the ids that are learnt most often, and all special ones. It cannot draft an id
that it does not score, so that its acceptance is at most the mass of its ids. What the target never writes, as the
words of questions, counts nothing; what ends a text or opens a thought is always there.

What is counted on held-out text is a proxy: agreement with the target on text that is given, and no text that was
decoded. What decides is the acceptance length of a benchmark.
"""

import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

from mmspec.core.distributions import take_nodes
from mmspec.training.losses import DraftLoss, TokenFilter, Top, acceptance, draft_loss, feature_loss
from mmspec_text.drafters.heads.dflash.network import DFlashNetwork
from mmspec_text.drafters.heads.eagle.network import EagleNetwork
from mmspec_text.drafters.heads.unroll import FillsBlocks, Samples, along, drafted_blocks, in_blocks, unrolled
from mmspec_text.training.new_head import Begin
from mmspec_text.training.teacher import Kept, Said, Teacher, room_for
from mmspec_text.training.texts import Batch, Source
from mmspec_text.training.trained import Trained, Training, fit_drafter
from mmspec_text.training.written import ends

AGAIN = 2
"""The number of times that sequences come in a run, on average, where what the target says of them is kept."""


DRAFTED = 5
"""Units of a draft that are counted of heads which usually learn one step alone: the depth of FSPAD's drafts."""


def trained_head(begin: Begin, of: Training) -> Trained:
    """Train a head, which `begin` makes."""
    recipe = of.recipe
    ids = drafted_ids(of.texts.sources, recipe.draft_vocab, of.model, of.tokenizer)
    head = begin(of.model, recipe, of.name, ids)
    teacher = Teacher(of.model, head.boundaries)
    said = kept(teacher, of, len(head.boundaries) * of.model.config.get_text_config(decoder=True).hidden_size)
    glance = partial(glanced_share, recipe.glance, recipe.steps * recipe.batches)
    loss_of = partial(head_loss, said, steps=recipe.depth, anchors=recipe.anchors, noise=recipe.noise, glance=glance)
    with warnings.catch_warnings():  # norms in float32 under bfloat16 autocast are meant to be
        warnings.filterwarnings("ignore", "Mismatch dtype between input and weight")
        fit_drafter(of, head.network, lambda: begin(of.model, recipe, of.name, ids).network, loss_of, head.hidden)
    found, device = {}, of.model.device
    depth = max(recipe.depth, DRAFTED) if guesses_features(head.network) else recipe.depth
    for kind, windows in of.held.items():
        # A head in float32 reads a target of another dtype only under autocast, as in training
        with torch.autocast(device.type, torch.bfloat16, enabled=of.model.dtype != torch.float32):
            counted = depth_metrics(head.network, teacher, windows.to(device).apart(), depth)
        found[kind] = asdict(counted.rounded())
    return Trained(head.write, {"parameters": sum(p.numel() for p in head.network.parameters()), "held_out": found})


def kept(teacher: Teacher, of: Training, width: int) -> Callable[[Tensor, Tensor | None], Said]:
    """The lessons of a teacher with so many features; from a disk where sequences come again and there is room."""
    recipe, pieces = of.recipe, of.texts.pieces
    if pieces is None or recipe.steps * recipe.batches * recipe.batch < AGAIN * pieces:
        return teacher.said
    if (size := room_for(of.work.parent, pieces, recipe.context, width)) is None:
        return teacher.said
    of.say(f"the target reads every text once; what it says takes {size / 1e9:.1f} GB of {of.work.parent}")
    return Kept(teacher, of.work.parent, pieces, recipe.context).said


def drafted_ids(
    sources: Sequence[Source], size: int | None, model: Any, tokenizer: PreTrainedTokenizerBase
) -> Tensor | None:
    """The ids, `[size]` int64, ascending; None if these are all.

    Special ids are what the tokenizer calls so, all that were added to it, and what ends a text.
    """
    vocab: int = model.config.get_text_config(decoder=True).vocab_size
    if size is None or size >= vocab:
        return None
    special = {*tokenizer.all_special_ids, *tokenizer.added_tokens_decoder, *ends(model).tolist()}
    always = torch.tensor(sorted(one for one in special if one < vocab), dtype=torch.int64)
    if len(always) > size:
        raise ValueError(
            f"a vocabulary of {size} ids (draft_vocab) has no place for the {len(always)} special ones of the target"
        )
    seen = torch.zeros(vocab, dtype=torch.int64)
    for source in sources:
        seen += source.learnt.bincount(minlength=vocab)
    seen[always] = int(seen.max()) + 1
    return seen.sort(descending=True, stable=True).indices[:size].sort().values  # of equal ones the lowest ids


@dataclass(frozen=True)
class DepthMetrics:
    """The figures of a head along a known text, at every depth of a draft."""

    right: tuple[float, ...]  # how often its likeliest unit is the target's, given that it was at all depths before
    # α = Σ min(p, q), averaged over the rows that count: how often an exact rule takes a sampled unit
    accepted: tuple[float, ...]
    length: float  # the simulated acceptance length of a greedy chain: 1 + Σ of the products of `right`

    def rounded(self) -> "DepthMetrics":
        """To four places."""
        right, accepted = (tuple(round(value, 4) for value in values) for values in (self.right, self.accepted))
        return DepthMetrics(right, accepted, round(self.length, 4))


@torch.no_grad()
def depth_metrics(head: Any, teacher: Teacher, texts: Iterable[Batch], depth: int) -> DepthMetrics:
    """Count on texts, behind the units that count there."""
    own, reached, hits, alphas, rows = own_ids(head), [0] * depth, [0] * depth, [0.0] * depth, [0] * depth
    for text in texts:
        features, logits = teacher(text.ids)
        assert features is not None
        p = logits.softmax(-1)
        p = p if own is None else p[..., own]
        likeliest, alive = logits.argmax(-1), None
        for step, scored in enumerate(along(head, features, text.ids, depth)):
            here, best = slice(step + 1, step + 1 + scored.shape[1]), scored.argmax(-1)
            counted = text.counted[:, here]
            alive = counted if alive is None else alive & counted
            reached[step] += int(alive.sum())
            alive = alive & ((best if own is None else own[best]) == likeliest[:, here])
            hits[step] += int(alive.sum())
            alphas[step] += float((acceptance(scored, p[:, here]) * counted).sum())
            rows[step] += int(counted.sum())
    if not rows or not rows[0]:
        raise ValueError("there is no held-out text to count on")
    right = tuple(hit / all_ if all_ else 0.0 for hit, all_ in zip(hits, reached, strict=True))
    accepted = tuple(alpha / all_ if all_ else 0.0 for alpha, all_ in zip(alphas, rows, strict=True))
    return DepthMetrics(right, accepted, 1 + sum(hits) / rows[0])


LEAST = 0.2
"""The least share of roots behind which a unit is scored, however deep (PARD's r_min)."""


def head_loss(
    said: Callable[[Tensor, Tensor | None], Said],
    loss: DraftLoss,
    steps: int,
    chosen: TokenFilter | None = None,
    anchors: int = 64,
    noise: float = 0.0,
    glance: Callable[[Batch], float] | None = None,
) -> Callable[[nn.Module, Batch], Tensor]:
    """The loss of a head on a batch: the mean over the depths of a draft, by their weights.

    `said` is a teacher's (`Teacher.said`). `steps` counts the units of a draft. `chosen` chooses rows anew at every
    depth, among those that count there. A head that scores a block learns behind at most `anchors` roots of a sequence.
    A head that predicts features learns from some that are off by up to `noise`, as its own are in a draft. What scores
    by a sampler learns at the target's output layer, too; its states then come near the target's by squared distance.
    A head of Falcon learns all units of its blocks alike, and is shown a share of its errors, `glance`.
    """

    def of(model: nn.Module, batch: Batch) -> Tensor:
        weights = sum(loss.decay**depth for depth in range(1 if blocks_of(model) > 1 else steps))
        own = own_ids(model)
        features, top = said(batch.ids, own)
        total = top.p.new_zeros(())
        given = (
            shaken(features, batch, noise if guesses_features(model) else 0),
            top,
            among(own, batch.ids),
            batch,
            steps,
            anchors,
        )
        shown = 0 if glance is None else glance(batch)
        others = None if chosen is None else compared(chosen.reference, *given, glance=shown)
        pairs = enumerate(compared(model, *given, glance=shown))
        for depth, (scored, theirs, following, mask, place, predicted, plain) in pairs:
            if chosen is not None and others is not None:
                with torch.no_grad():
                    mask = chosen.kept(scored, next(others).scored, theirs, mask)
            total = total + draft_loss(scored, theirs, mask, depth, loss, following)
            if plain is not None:
                total = total + draft_loss(plain, theirs, mask, depth, loss, following)
            if loss.features and predicted is not None:
                off = feature_loss(predicted, take_nodes(features, place), mask, squared=plain is not None)
                total = total + loss.features * loss.decay**depth * off
        return total / weights

    return of


def shaken(features: Tensor, batch: Batch, noise: float) -> Tensor:
    """Features with uniform noise up to so much, drawn as a function of the batch (EAGLE's data augmentation)."""
    if not noise:
        return features
    drawn = torch.rand(features.shape, generator=torch.Generator().manual_seed(batch.seed))
    return features + noise * (2 * drawn - 1).to(features)


class Compared(NamedTuple):
    """Rows of one depth."""

    scored: Tensor  # `[sequence, row, own ids]`: the head's logits
    p: Top  # of the target's distribution over the same ids, behind the same units
    # `[sequence, row]` int64: the text's unit there, -1 where the head has no such id or the text has ended
    units: Tensor
    mask: Tensor  # `[sequence, row]` bool: the rows that count
    place: Tensor  # `[sequence, row]` int64: the unit of the text behind which the target says p
    predicted: Tensor | None = None  # `[sequence, row, width]`: the head's guess of the feature there, if it has one
    plain: Tensor | None = None  # as `scored`, by the target's output layer, which learns beside a sampler


def compared(
    head: Any, features: Tensor, p: Top, units: Tensor, batch: Batch, steps: int, anchors: int, *, glance: float = 0
) -> Iterator[Compared]:
    """A head beside its target, whose `features` are `[sequence, unit, width]`.

    `p [sequence, unit, k]` is of the target's distribution over the head's ids behind every unit;
    `units [sequence, unit]` are the text in the head's own ids, -1 where there is none. A head that scores a block is
    compared at so many `anchors` of a sequence, others behind all units; a head of Falcon once, at all rows.
    """
    following = torch.nn.functional.pad(units[:, 1:], (0, 1), value=-1)
    if isinstance(head, DFlashNetwork | FillsBlocks):
        roots, drawn = drawn_roots(batch, anchors)
        kept = kept_roots(roots.shape[1], head.share if isinstance(head, FillsBlocks) else 1.0, steps)
        filled = head.filled(batch.ids, roots, kept) if isinstance(head, Samples) else None
        scores = drafted_blocks(head, features, batch.ids, roots, kept) if filled is None else filled.scored
        last = units.shape[1] - 1
        for depth, count in enumerate(kept):
            root = roots[:, :count]
            inside, place = drawn[:, :count] & (root + depth <= last), (root + depth).clamp(max=last)
            mask = inside & batch.counted.gather(1, place)
            near = Top(take_nodes(p.p, place), take_nodes(p.ids, place))
            more = () if filled is None else (filled.states[depth], filled.plain[depth])
            yield Compared(scores[depth], near, following.gather(1, place), mask, place, *more)
        return
    if (block := blocks_of(head)) > 1:
        here, next_units = slice(block, None), batch.ids[:, 1 : 1 + units.shape[1] - block]
        near, place = Top(p.p[:, here], p.ids[:, here]), places(units)[:, here]
        read, mask = features[:, : next_units.shape[1]], batch.counted[:, here]
        if glance:
            read, next_units = glanced(head, features, batch, near.ids[..., 0], glance)
        states = in_blocks(head, read, next_units)
        yield Compared(head.scored(states), near, following[:, here], mask, place, head.predicted(states))
        return
    guesses = guesses_features(head)
    for depth, made in enumerate((unrolled if guesses else along)(head, features, batch.ids, steps)):
        here = slice(depth + 1, depth + 1 + made.shape[1])
        scored, predicted = (head.scored(made), head.predicted(made)) if guesses else (made, None)
        near = Top(p.p[:, here], p.ids[:, here])
        yield Compared(scored, near, following[:, here], batch.counted[:, here], places(units)[:, here], predicted)


def places(units: Tensor) -> Tensor:
    """The places of the units of texts, `[sequence, unit]` int64."""
    return torch.arange(units.shape[1], device=units.device).expand(len(units), -1)


FALLS = 0.35 / 0.45
"""The part of its first value that Falcon's share of glances loses in a run."""


def glanced_share(first: float, batches: int, batch: Batch) -> float:
    """The share of a batch: from `first` down, in a run of so many batches."""
    return first * (1 - FALLS * batch.number / batches)


@torch.no_grad()
def glanced(head: EagleNetwork, features: Tensor, batch: Batch, theirs: Tensor, share: float) -> tuple[Tensor, Tensor]:
    """Features and units of a text as a head of Falcon reads them in its second pass (coupled sequential glancing
    distillation; Bestpay-inc/Falcon: train/glance.py).

    The first pass, without a gradient, says how often the head is wrong, `theirs [sequence, row]` being the target's
    likeliest units; where the first row of a block is drawn, it has the feature and the unit that it is to predict: of
    each sequence a share of the number of errors, of blocks of more than two units the k-th part of it, and with them
    0 to k - 2 rows behind. Drawn as a function of the batch.
    """
    block, rows, ids = head.architecture.block, theirs.shape[1], batch.ids
    read, units, counted = features[:, :rows], ids[:, 1 : rows + 1], batch.counted[:, block:]
    wrong = (head.scored(in_blocks(head, read, units)).argmax(-1) != theirs) & counted
    wanted = (wrong.sum(1) * share).long() // (1 if block == 2 else block)
    g = torch.Generator().manual_seed(batch.seed)
    noise, more = torch.rand(theirs.shape, generator=g), torch.randint(max(1, block - 1), theirs.shape, generator=g)
    fit = counted & (places(units) % block == 0) & (places(units) + block + 1 < ids.shape[1])
    order = torch.where(fit, noise.to(fit.device), -1.0).argsort(1, descending=True).argsort(1)
    first = fit & (order < wanted[:, None])
    shown = first.clone()
    for behind in range(1, block - 1):
        shown[:, behind:] |= (first & (more.to(fit.device) >= behind))[:, :-behind]
    shown[:, -1] = False  # behind which no unit is known
    ahead = torch.nn.functional.pad(ids[:, 1 + block :], (0, 1))
    return torch.where(shown[..., None], features[:, block:], read), torch.where(shown, ahead, units)


def blocks_of(head: Any) -> int:
    """The units of a block of a head of Falcon; of others 1."""
    return head.architecture.block if isinstance(head, EagleNetwork) else 1


def drawn_roots(batch: Batch, most: int) -> tuple[Tensor, Tensor]:
    """Places `[sequence, root]` int64, and which of them are roots: units that are learnt and followed by one that is,
    drawn without replacement as a function of the batch, at most so many of a sequence.
    """
    fit = batch.counted[:, 1:] & batch.counted[:, :-1]
    most = min(most, max(1, int(fit.sum(1).max())))
    noise = torch.rand(fit.shape, generator=torch.Generator().manual_seed(batch.seed)).to(fit.device)
    best = torch.where(fit, noise, -1.0).topk(most, 1)
    return best.indices + 1, best.values >= 0


def kept_roots(roots: int, share: float, steps: int) -> list[int]:
    """Behind how many roots each unit of a draft is scored: PARD's conditional drop of tokens (arXiv 2504.18583)."""
    return [math.ceil(roots * max(share**depth, LEAST)) for depth in range(steps)]


def guesses_features(head: Any) -> bool:
    """True if a head feeds back what it guesses of the target's features: one of EAGLE-1 or FSPAD."""
    return isinstance(head, EagleNetwork) and not head.architecture.fused


def own_ids(head: Any) -> Tensor | None:
    """The target's ids that a head scores, ascending; None: all of them."""
    return head.ids if isinstance(head, EagleNetwork) else None


def among(own: Tensor | None, units: Tensor) -> Tensor:
    """The places of units `[…]` among the ids that a head scores, -1 where there is none; None: all are."""
    if own is None:
        return units
    found = torch.searchsorted(own, units).clamp(max=len(own) - 1)
    return torch.where(own[found] == units, found, -1)
