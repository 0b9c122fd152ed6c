"""The core's own offers: rules and policies. They come through the same door as a plugin's, and import no torch."""

from collections.abc import Iterable

from mmspec.registry import PolicySpec, RuleSpec, Spec, hookimpl

MATCH = RuleSpec.row(
    "match",
    "mmspec.core.rules.match:Match",
    "discrete → redraw rerank",
    "Draw from p with noise that belongs to the position; follow the child it hits.",
    "https://arxiv.org/abs/2408.07978",
    exactness="invariant",
)
REJECTION = RuleSpec.row(
    "rejection",
    "mmspec.core.rules.rejection:Rejection",
    "chain → redraw",
    "Couple p with the draft's distribution, unit by unit, along a chain or a window.",
    "https://arxiv.org/abs/2211.17192",
    exactness="lossless",
)
RECURSIVE_REJECTION = RuleSpec.row(
    "recursive-rejection",
    "mmspec.core.rules.recursive_rejection:RecursiveRejection",
    "discrete",
    "Try sampled siblings in turn, each against what the last one left of p.",
    "https://arxiv.org/abs/2402.14160",
    exactness="lossless",
)
BLOCK = RuleSpec.row(
    "block",
    "mmspec.core.rules.block:Block",
    "discrete chain",
    "Accept or reject prefixes of a chain as a whole; never shorter than rejection.",
    "https://arxiv.org/abs/2403.10444",
    exactness="lossless",
)
SYNTHETIC = RuleSpec.row(
    "synthetic",
    "mmspec.core.rules.synthetic:Synthetic",
    "→ redraw rerank",
    "Accept at a given rate, whatever was drafted; for benchmarks of speed only.",
    exactness="synthetic",
)

FIXED = PolicySpec(name="fixed", factory="mmspec.core.policies:Fixed", summary="Always k units.")
CONFIDENCE = PolicySpec(
    name="confidence",
    factory="mmspec.core.policies:confidence",
    summary="Up to k units, cut where the drafter's confidence falls below a threshold.",
)
GOODPUT = PolicySpec(
    name="goodput",
    factory="mmspec.core.goodput:Goodput",
    summary="The depth with the most units a second, by measured times and acceptance.",
    paper="https://arxiv.org/abs/2406.14066",
)
PAYOFF = PolicySpec(
    name="payoff",
    factory="mmspec.core.payoff:Payoff",
    summary="Of every draft what is expected to pay, by its chances and by measured times.",
)


@hookimpl
def mmspec_components() -> Iterable[Spec]:
    """The rules, the default one first; the policies."""
    return MATCH, REJECTION, RECURSIVE_REJECTION, BLOCK, SYNTHETIC, FIXED, CONFIDENCE, GOODPUT, PAYOFF
