"""The core's own offers: the rules. They come through the same door as a plugin's, and import no torch."""

from collections.abc import Iterable

from mmspec.registry import RuleSpec, Spec, hookimpl

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


@hookimpl
def mmspec_components() -> Iterable[Spec]:
    """The rules, the default one first."""
    return MATCH, REJECTION, RECURSIVE_REJECTION, BLOCK, SYNTHETIC
