"""The core's own offers: the rules. They come through the same door as a plugin's, and import no torch."""

from collections.abc import Iterable

from mmspec.registry import RuleSpec, Spec, hookimpl

MATCH = RuleSpec(
    name="match",
    factory="mmspec.core.rules.match:Match",
    needs=frozenset({"discrete"}),
    offers=frozenset({"redraw", "rerank"}),
    exactness="invariant",
    summary="Draw from p with noise that belongs to the position; follow the child it hits.",
    paper="https://arxiv.org/abs/2408.07978",
)
REJECTION = RuleSpec(
    name="rejection",
    factory="mmspec.core.rules.rejection:Rejection",
    needs=frozenset({"chain"}),
    offers=frozenset({"redraw"}),
    exactness="lossless",
    summary="Couple p with the draft's distribution, unit by unit, along a chain or a window.",
    paper="https://arxiv.org/abs/2211.17192",
)
RECURSIVE_REJECTION = RuleSpec(
    name="recursive-rejection",
    factory="mmspec.core.rules.recursive_rejection:RecursiveRejection",
    needs=frozenset({"discrete"}),
    exactness="lossless",
    summary="Try sampled siblings in turn, each against what the last one left of p.",
    paper="https://arxiv.org/abs/2402.14160",
)
BLOCK = RuleSpec(
    name="block",
    factory="mmspec.core.rules.block:Block",
    needs=frozenset({"discrete", "chain"}),
    exactness="lossless",
    summary="Accept or reject prefixes of a chain as a whole; never shorter than rejection.",
    paper="https://arxiv.org/abs/2403.10444",
)
SYNTHETIC = RuleSpec(
    name="synthetic",
    factory="mmspec.core.rules.synthetic:Synthetic",
    offers=frozenset({"redraw", "rerank"}),
    exactness="synthetic",
    summary="Accept at a given rate, whatever was drafted; for benchmarks of speed only.",
    options="mmspec.core.rules.synthetic:SyntheticOptions",
)


@hookimpl
def mmspec_components() -> Iterable[Spec]:
    """The rules, the default one first."""
    return MATCH, REJECTION, RECURSIVE_REJECTION, BLOCK, SYNTHETIC
