"""The promise of a drafter that offers `q`: its units were drawn from the distribution that it reports.

Every unit is mapped to a number that is uniform if the unit was drawn from its distribution (the probability integral
transform, randomised where a unit has mass). Then the numbers of a draft are uniform on a cube, whatever the
distributions of its nodes and rows: one χ² test sees chains, siblings and windows alike.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from mmspec.core.decoder import Decoder
from mmspec.core.distributions import (
    Categorical,
    Distribution,
    Gaussian,
    GaussianMixture,
    Mixed,
    PointMass,
    Trajectory,
)
from mmspec.core.philox import PhiloxSource
from mmspec.core.types import Draft
from mmspec.core.warp import Warp
from mmspec.registry import DrafterSpec
from mmspec.testing.conformance.benches import Bench
from mmspec.testing.conformance.drafters import runs
from mmspec.testing.conformance.promise import Broken, Untried, offers, promise
from mmspec.testing.conformance.subject import Subject, Trial
from mmspec.testing.conformance.watch import Log, Watched, live_nodes
from mmspec.testing.statistics import LEVEL, OTHER_SEED, chi_squared_sees, joint_p_value

BINS = 5
NODES = 3
ROUNDS = 3
MOST = 25_000
"""Most rows of a run."""


def _draws_anew(component: DrafterSpec) -> bool:
    """True if every round draws all of its units; a window that needs `redraw` keeps units from round to round."""
    return "q" in component.offers and "redraw" not in component.needs


@promise("drafter", when=lambda component: "q" not in component.offers)
def drafts_are_point_masses(subject: Subject) -> str:
    """Without `q` among its offers a draft has no distribution: a rule then knows that nothing was drawn."""
    nodes = 0
    for trial, played in runs(subject):
        for _, draft in (pair for rounds in played.rounds for pair in rounds):
            nodes += draft.units.shape[1]
            if draft.distribution is not None and not isinstance(draft.distribution, PointMass):
                kind = type(draft.distribution).__name__
                raise Broken(f"on {trial.name}, a draft has a {kind} distribution; offer `q`")
    return f"{nodes:,} nodes without a distribution"


@promise("drafter", when=offers("q"))
def distributions_are_normalised(subject: Subject) -> str:
    """A reported distribution sums to 1 at every node, and has no negative probability."""
    off, distributions = 0.0, 0
    for trial in subject.trials:
        log = _fresh_drafts(trial, 0)[0]
        off, distributions = max(off, log.most["off"]), distributions + log.count["distributions"]
        if log.wrong["distributions-are-normalised"]:
            raise Broken(f"on {trial.name}: {log.wrong['distributions-are-normalised'][0]}")
    if not distributions:
        raise Untried("with these options no draft has a distribution")
    return f"max |Σq − 1| {off:.0e} at {distributions:,} nodes"


@promise("drafter", when=offers("q"))
def units_follow_their_distribution(subject: Subject) -> str:
    """Under a rule with fresh noise, drafted units are distributed as the distribution that the draft reports."""
    return _worst(subject, _within, "whose units do not follow their distribution")


@promise("drafter", when=_draws_anew)
def rounds_draw_fresh_noise(subject: Subject) -> str:
    """Under a rule with fresh noise, the draws of one round are independent of those of the next."""
    return _worst(subject, _between, "whose rounds share their noise")


def _worst(subject: Subject, look: Callable[[list[Draft], int], Tensor | None], what: str) -> str:
    """The smallest p-value over trials; a trial that fails is tried once more, with another seed.

    `look` makes numbers `[rows, n]`, uniform on a cube, of the drafts of a run, or None if there are none; `what` is
    the end of the sentence that says what is wrong.
    """
    tried: list[tuple[float, str]] = []
    for trial in subject.trials:
        p, number = 0.0, ""
        for seed in (0, OTHER_SEED):
            runs = [(_fresh_drafts(trial, seed + run)[1], run) for run in range(_runs(trial))]
            uniform = [seen for drafts, run in runs if drafts and (seen := look(drafts, run)) is not None]
            if not uniform:
                break
            p, number = _p_of(torch.cat(uniform))
            if p > LEVEL:
                break
        if number:
            tried.append((p, number))
            if p <= LEVEL:
                raise Broken(f"on {trial.name} it makes drafts {what}", number)
    if not tried:
        raise Untried("no rule with fresh noise takes it, or its distributions are wrong already")
    return min(tried)[1]


def _p_of(uniform: Tensor) -> tuple[float, str]:
    """χ² of `uniform [rows, n]` in equal cells of the cube."""
    rows, n = uniform.shape
    cells = (uniform * BINS).long().clamp(max=BINS - 1)
    even = torch.full((BINS,) * n, 1 / BINS**n, dtype=torch.float64)
    p, sees = joint_p_value(cells, even), chi_squared_sees(even, rows)
    return p, f"χ² p = {p:.2g} ({BINS**n} cells, {rows:,} rows: sees a bias ≥ {sees:.2%})"


def _within(drafts: list[Draft], run: int) -> Tensor | None:
    """The first nodes of the last draft."""
    return _uniform(drafts[-1], run)[:, :NODES] if drafts[-1].units.shape[1] else None


def _between(drafts: list[Draft], run: int) -> Tensor | None:
    """The first node of every draft."""
    if not all(draft.units.shape[1] for draft in drafts):
        return None
    if _p_of(_uniform(drafts[0], run)[:, :NODES])[0] <= LEVEL:  # another check reports a wrong distribution
        return None
    return torch.cat([_uniform(draft, run, i)[:, :1] for i, draft in enumerate(drafts)], 1)


def _fresh_drafts(trial: Trial, seed: int) -> tuple[Log, list[Draft]]:
    """Drafts with a distribution of consecutive rounds under a rule with fresh noise, all rows alike; cached."""
    cache = trial.subject.cache
    if (trial, seed) not in cache:
        cache[trial, seed] = _drawn(trial, seed)
    return cache[trial, seed]


def _runs(trial: Trial) -> int:
    """The number of runs of a statistical trial."""
    return 1 if trial.example.rows else max(1, trial.rows // trial.bench.rows)


def _drawn(trial: Trial, seed: int) -> tuple[Log, list[Draft]]:
    drafter, bench = trial.drafter(), trial.bench
    assert drafter is not None
    try:
        rule = trial.rule(fresh=True)
    except Untried:
        return Log(), []
    watched = Watched(drafter)
    decoder = Decoder(bench.target, watched, rule, k=NODES)
    rows = min(bench.rows, trial.example.rows or MOST)
    state = decoder.start(bench.prompt([0] * rows), (NODES + 2) * (ROUNDS + 1), seed=seed, warp=_warped(bench))
    for _ in range(ROUNDS):
        decoder.settle(state, decoder.speculate(state))
        state.sync()
    return watched.log, [draft for _, draft in watched.rounds if draft.distribution is not None]


def _warped(bench: Bench) -> Warp:
    """A warp that changes distributions, so that a drafter which reports the unwarped softmax is seen."""
    vocab = bench.target.vocab
    if vocab is None or vocab < 3:
        return bench.warp
    return Warp.sampling(temperature=0.7, top_k=vocab - 1, guidance=bench.warp.guidance)


def _uniform(draft: Draft, run: int, place: int = 0) -> Tensor:
    """A number per node, `[batch, node]`: uniform if the unit was drawn from its distribution, random if not drawn."""
    source = PhiloxSource.seeded(1234 + ROUNDS * run + place, len(draft.units))  # no two drafts share coins
    count = draft.units.shape[1]
    coin = source.fresh(torch.zeros(len(draft.units), dtype=torch.int64), 0, count).uniform()
    assert draft.distribution is not None
    return torch.where(live_nodes(draft), _transform(draft.distribution, draft.units, coin), coin)


def _transform(distribution: Distribution, units: Tensor, coin: Tensor) -> Tensor:
    if isinstance(distribution, Mixed):
        return torch.where(distribution.random, _transform(distribution.distribution, units, coin), coin)
    if isinstance(distribution, Gaussian):
        first = ((units - distribution.mean) / distribution.sigma).flatten(2)[..., 0]
        return torch.special.ndtr(first)
    if isinstance(distribution, Trajectory):  # the last step, given all before it
        first = (distribution.states[:, :, -1, 0] - distribution.means[:, :, -1, 0]) / distribution.schedule.sigmas[-1]
        return torch.special.ndtr(first)
    if isinstance(distribution, GaussianMixture):
        first = torch.special.ndtr((units[..., None, 0] - distribution.means[..., 0]) / distribution.scales[..., 0])
        return (distribution.weights * first).sum(-1)
    if isinstance(distribution, Categorical):
        probs = distribution.on(None)
        own = probs.gather(-1, units[..., None])
        # The likeliest unit comes first, so that a draft of the likeliest unit shows at once.
        above = torch.where(probs > own, probs, 0).sum(-1)
        ties = (probs == own) & (torch.arange(probs.shape[-1]) < units[..., None])
        return above + torch.where(ties, probs, 0).sum(-1) + coin * own[..., 0]
    raise Untried(f"the kit cannot map units of a {type(distribution).__name__} to uniform numbers")
