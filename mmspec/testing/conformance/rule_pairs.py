"""The drafters that a rule is tried with, and decoding with them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor

from mmspec.core.decoder import Decoder
from mmspec.core.fit import refuse_misfits
from mmspec.core.protocols import Drafter
from mmspec.core.rules import Rule
from mmspec.core.warp import Warp
from mmspec.testing.conformance.benches import Bench, toys
from mmspec.testing.conformance.play import K, seeds
from mmspec.testing.conformance.promise import Broken, Untried
from mmspec.testing.conformance.subject import Subject, remembered, targets

ROWS = list(range(8))
LIMIT = 12


@dataclass(frozen=True)
class Pair:
    """A drafter that the rule takes, on a bench."""

    bench: Bench
    shape: str  # the drafter's name, which begins with the shape of its drafts
    drafter: Callable[[], Drafter]  # makes a new drafter
    rows: int  # rows of a statistical trial

    def decode(
        self,
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
        decoder = Decoder(self.bench.target, self.drafter(), rule, k=K)
        seed_or_seeds = seeds(rows) if seed is None else seed
        state = decoder.start(self.bench.prompt(rows), limit, seed=seed_or_seeds, warp=warp or self.bench.warp)
        while not state.finished:
            decoder.advance(state)
        if state.report.faults:
            raise Broken(f"with the drafter {self}, which fails: nothing is tried", f"{state.report.faults} rounds")
        return state.history[:, state.prompt_length : state.prompt_length + limit]

    def __str__(self) -> str:
        return f"{self.shape} on {self.bench.name}"


@remembered
def pairs(subject: Subject) -> list[Pair]:
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
                found.append(Pair(bench, shape, make, subject.rows(bench)))
        if found:
            return found
    raise Untried(f"no drafter of the kit fits it: {refusals[0]}. Give its factory an `example`")
