"""The drafters that a rule is tried with, and decoding with them."""

from collections.abc import Sequence

from torch import Tensor

from mmspec.core.decoder import Decoder
from mmspec.core.promise import refuse_misfits
from mmspec.core.rules import Rule
from mmspec.core.warp import Warp
from mmspec.testing.conformance.benches import toys
from mmspec.testing.conformance.play import K, seeds
from mmspec.testing.conformance.promise import Broken, Untried
from mmspec.testing.conformance.subject import Subject, Trial, remembered, targets

ROWS = list(range(8))
LIMIT = 12


def decode(
    trial: Trial,
    rule: Rule,
    rows: Sequence[int] = ROWS,
    *,
    limit: int = LIMIT,
    seed: int | None = None,
    warp: Warp | None = None,
) -> Tensor:
    """Units of every row, given as numbers: `[batch, limit, *unit]`.

    Without a seed every row has one of its own, the same in every batch; without a warp the bench's is used.
    """
    decoder = Decoder(trial.bench.target, trial.drafter(), rule, k=K)
    seed_or_seeds = seeds(rows) if seed is None else seed
    state = decoder.start(trial.bench.prompt(rows), limit, seed=seed_or_seeds, warp=warp or trial.bench.warp)
    while not state.finished:
        decoder.advance(state)
    if state.report.faults:
        raise Broken(f"with the drafter {trial}, which fails: nothing is tried", f"{state.report.faults} rounds")
    return state.history[:, state.prompt_length : state.prompt_length + limit]


@remembered
def rule_trials(subject: Subject) -> list[Trial]:
    """Every drafter of the benches that the rule takes."""
    own = [bench for bench in subject.own_benches if bench.drafters]
    rule, refusals = subject.rule(), []
    for benches in (own or toys(), targets(subject.registry, subject.given)):
        found = []
        for bench in benches:
            for shape, make in bench.drafters.items():
                try:
                    refuse_misfits(bench.target, make(), rule)
                except ValueError as error:
                    refusals.append(str(error))
                    continue
                found.append(Trial(subject, bench, make, shape, subject.rows(bench)))
        if found:
            return found
    raise Untried(f"no drafter of the kit fits it: {refusals[0]}. Give its factory an `example`")
