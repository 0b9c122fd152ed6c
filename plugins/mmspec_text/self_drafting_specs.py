"""What the drafters are with which a target drafts for itself, and their methods. Imports no torch."""

from mmspec.registry import DrafterSpec, MethodSpec

LAYER_SKIP = DrafterSpec(
    name="layer-skip",
    factory="mmspec_text.drafters.self_drafting.layer_skip:LayerSkip",
    needs=frozenset({"discrete"}),
    offers=frozenset({"chain", "q"}),
    summary="The target's first layers and its output layer draft a chain.",
    paper="https://arxiv.org/abs/2404.16710",
    options="mmspec_text.drafters.self_drafting.layer_skip:LayerSkipOptions",
)
SWIFT = DrafterSpec(
    name="swift",
    factory="mmspec_text.drafters.self_drafting.swift:Swift",
    needs=frozenset({"discrete", "rerank"}),
    offers=frozenset({"tree"}),
    summary="The target without some sub-layers, found during calls, drafts a comb.",
    paper="https://arxiv.org/abs/2410.06916",
    options="mmspec_text.drafters.self_drafting.swift:SwiftOptions",
)
DEL = DrafterSpec(
    name="del",
    factory="mmspec_text.drafters.self_drafting.dynamic_exit:DynamicExit",
    needs=frozenset({"discrete", "hidden"}),
    offers=frozenset({"chain", "q"}),
    summary="The target's first layers draft; exit and length are chosen round by round.",
    paper="https://arxiv.org/abs/2504.05598",
    options="mmspec_text.drafters.self_drafting.dynamic_exit:DynamicExitOptions",
)
SELF_DRAFTERS = (LAYER_SKIP, SWIFT, DEL)
SELF_METHODS = tuple(
    MethodSpec(
        name=drafter.name,
        drafter=drafter.name,
        needs=frozenset({"text"}),
        exactness="invariant",
        summary=summary,
        paper=drafter.paper,
    )
    for drafter, summary in (
        (LAYER_SKIP, "Early exit: the target's first layers draft; for models trained for it."),
        (SWIFT, "The target drafts without some sub-layers, found while it writes; no training."),
        (DEL, "Early exit, whose layer and length follow what would have been accepted."),
    )
)
