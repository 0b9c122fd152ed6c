"""What the drafter is whose small model has sub-models, and its method. Imports no torch."""

from mmspec.registry import DrafterSpec, MethodSpec

S2D = DrafterSpec(
    name="s2d",
    factory="mmspec_text.drafters.s2d:S2D",
    offers=frozenset({"chain", "q"}),
    summary="A smaller model that draws each unit from the first of its exits that is sure.",
    paper="https://arxiv.org/abs/2407.01955",
    options="mmspec_text.drafters.s2d:S2DOptions",
)
SORTED_DRAFTERS = (S2D,)
SORTED_METHODS = (
    MethodSpec(
        name="s2d",
        drafter="s2d",
        needs=frozenset({"text"}),
        exactness="invariant",
        summary="Sorted speculative decoding: a smaller model's layers run until it is sure.",
        paper=S2D.paper,
    ),
)
