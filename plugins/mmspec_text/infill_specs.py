"""What the text plugin offers for models that fill the blanks of a text in any order. Imports no torch."""

from mmspec.registry import DefaultMethod, DrafterSpec, MethodSpec, TargetSpec

PAPER = "https://arxiv.org/abs/2504.20456"
XLNET = TargetSpec(
    name="xlnet",
    factory="mmspec_text.targets.xlnet:XLNetTarget",
    offers=frozenset({"discrete", "any-order", "truncate"}),
    words={"any-order": "The target fills the blanks of a text in any order, and scores several at once."},
    summary="XLNet of transformers, which fills the blanks of a text in any order.",
    paper="https://arxiv.org/abs/1906.08237",
    pipeline="mmspec_text.infill:InfillPipeline",
    default_methods=(DefaultMethod(method="assd"),),
)
ASSD = DrafterSpec(
    name="assd",
    factory="mmspec_text.drafters.assd:Assd",
    needs=frozenset({"discrete", "any-order"}),
    offers=frozenset({"chain", "q"}),
    summary="The target itself scores several blanks at once, as if they were independent.",
    paper=PAPER,
)
INFILL_METHODS = (
    MethodSpec(
        name="assd",
        drafter="assd",
        rule="rejection",
        exactness="lossless",
        summary="An any-order model drafts several blanks at once and verifies them in order.",
        paper=PAPER,
    ),
)
