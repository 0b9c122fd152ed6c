"""What the text plugin offers that drafts while the target verifies."""

from mmspec.registry import DrafterSpec, MethodSpec

PEARL = DrafterSpec(
    name="pearl",
    factory="mmspec_text.drafters.pearl:Pearl",
    needs=frozenset({"discrete", "rerank"}),
    offers=frozenset({"chain"}),
    summary="A smaller model that drafts while the target verifies, in its own process.",
    paper="https://arxiv.org/abs/2408.11850",
    options="mmspec_text.drafters.pearl:PearlOptions",
)
SAGUARO = DrafterSpec(
    name="saguaro",
    factory="mmspec_text.drafters.saguaro:Saguaro",
    needs=frozenset({"discrete", "rerank"}),
    offers=frozenset({"chain"}),
    summary="A smaller model that drafts for many outcomes of a round ahead of its end.",
    paper="https://arxiv.org/abs/2603.03251",
    options="mmspec_text.drafters.saguaro:SaguaroOptions",
)
MIRROR_SD = DrafterSpec(
    name="mirror-sd",
    factory="mmspec_text.drafters.mirror_sd:MirrorSD",
    needs=frozenset({"discrete", "rerank"}),
    offers=frozenset({"chain"}),
    summary="A smaller model that drafts for what an early exit of the target says.",
    paper="https://arxiv.org/abs/2510.13161",
    options="mmspec_text.drafters.mirror_sd:MirrorOptions",
)
OVERLAP_DRAFTERS = (PEARL, SAGUARO, MIRROR_SD)
OVERLAP_METHODS = (
    MethodSpec(
        name="pearl",
        drafter="pearl",
        needs=frozenset({"text"}),
        exactness="invariant",
        summary="A smaller model drafts while the target verifies: for a core or two to spare.",
        paper="https://arxiv.org/abs/2408.11850",
    ),
    MethodSpec(
        name="saguaro",
        drafter="saguaro",
        needs=frozenset({"text"}),
        exactness="invariant",
        summary="Like pearl, with drafts for many outcomes of a round; waits for the others.",
        paper="https://arxiv.org/abs/2603.03251",
    ),
    MethodSpec(
        name="mirror-sd",
        drafter="mirror-sd",
        needs=frozenset({"text"}),
        exactness="invariant",
        summary="Like saguaro, for the outcomes that an early exit of the target thinks likely.",
        paper="https://arxiv.org/abs/2510.13161",
    ),
)
