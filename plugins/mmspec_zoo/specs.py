"""The specs of the zoo; its classes read their facts here. Imports no torch."""

from mmspec.registry import DefaultMethod, DrafterSpec, MethodSpec, RuleSpec, TargetSpec

TEXT = frozenset({"text"})
DRAFT_MODEL = "text:draft-model"
"""The drafter of lossy methods: the text plugin's, by its name at the door."""

# A smaller model drafts while the target verifies.
PEARL = DrafterSpec(
    name="pearl",
    factory="mmspec_zoo.overlap.pearl:Pearl",
    needs=frozenset({"discrete", "rerank"}),
    offers=frozenset({"chain"}),
    summary="A smaller model that drafts while the target verifies, in its own process.",
    paper="https://arxiv.org/abs/2408.11850",
    options="mmspec_zoo.overlap.overlapped:AheadOptions",
)
SAGUARO = DrafterSpec(
    name="saguaro",
    factory="mmspec_zoo.overlap.saguaro:Saguaro",
    needs=frozenset({"discrete", "rerank"}),
    offers=frozenset({"chain"}),
    summary="A smaller model that drafts for many outcomes of a round ahead of its end.",
    paper="https://arxiv.org/abs/2603.03251",
    options="mmspec_zoo.overlap.saguaro:SaguaroOptions",
)
MIRROR_SD = DrafterSpec(
    name="mirror-sd",
    factory="mmspec_zoo.overlap.mirror_sd:MirrorSD",
    needs=frozenset({"discrete", "rerank"}),
    offers=frozenset({"chain"}),
    summary="A smaller model that drafts for what an early exit of the target says.",
    paper="https://arxiv.org/abs/2510.13161",
    options="mmspec_zoo.overlap.mirror_sd:MirrorOptions",
)

# A smaller model that is cut, joined or shared.
VOCAB_TRIM = DrafterSpec(
    name="vocab-trim",
    factory="mmspec_zoo.vocabularies.vocab_trim:VocabTrim",
    offers=frozenset({"chain", "q"}),
    summary="A smaller language model whose output layer keeps the most frequent ids alone.",
    paper="https://arxiv.org/abs/2506.22694",
    options="mmspec_zoo.vocabularies.vocab_trim:VocabTrimOptions",
)
OMNIDRAFT = DrafterSpec(
    name="omnidraft",
    factory="mmspec_zoo.vocabularies.omnidraft:OmniDraft",
    needs=frozenset({"discrete"}),
    offers=frozenset({"chain"}),
    summary="A smaller model with another tokenizer, whose tokens are joined to the target's.",
    paper="https://arxiv.org/abs/2507.02659",
    options="mmspec_zoo.vocabularies.omnidraft:OmniDraftOptions",
)
S2D = DrafterSpec(
    name="s2d",
    factory="mmspec_zoo.sorted.s2d:S2D",
    offers=frozenset({"chain", "q"}),
    summary="A smaller model that draws each unit from the first of its exits that is sure.",
    paper="https://arxiv.org/abs/2407.01955",
    options="mmspec_zoo.sorted.s2d:S2DOptions",
)
SPECMEMO = DrafterSpec(
    name="specmemo",
    factory="mmspec_zoo.specmemo:SpecMemo",
    offers=frozenset({"tree", "q"}),
    summary="A smaller model drafts a tree, within a budget of bytes for both caches.",
    paper="https://arxiv.org/abs/2506.01986",
    options="mmspec_zoo.specmemo:SpecMemoOptions",
)

# Two prompts.
AMBEDKAR = DrafterSpec(
    name="ambedkar",
    factory="mmspec_zoo.conditioned.ambedkar:Ambedkar",
    offers=frozenset({"chain", "q"}),
    summary="A smaller model on the bare prompt drafts for the model behind a condition.",
    paper="https://arxiv.org/abs/2509.02133",
    options="mmspec_zoo.conditioned.ambedkar:AmbedkarOptions",
    wrt="the model's distribution behind the condition",
)
RAPID = DrafterSpec(
    name="rapid",
    factory="mmspec_zoo.conditioned.rapid:Rapid",
    offers=frozenset({"chain", "q"}),
    summary="A model, or the target itself, on the retrieved part of a long prompt.",
    paper="https://arxiv.org/abs/2502.20330",
    options="mmspec_zoo.conditioned.rapid:RapidOptions",
)

# The target drafts for itself.
LAYER_SKIP = DrafterSpec(
    name="layer-skip",
    factory="mmspec_zoo.self_drafting.layer_skip:LayerSkip",
    needs=frozenset({"discrete"}),
    offers=frozenset({"chain", "q"}),
    summary="The target's first layers and its output layer draft a chain.",
    paper="https://arxiv.org/abs/2404.16710",
    options="mmspec_zoo.self_drafting.layer_skip:LayerSkipOptions",
)
SWIFT = DrafterSpec(
    name="swift",
    factory="mmspec_zoo.self_drafting.swift:Swift",
    needs=frozenset({"discrete", "rerank"}),
    offers=frozenset({"tree"}),
    summary="The target without some sub-layers, found during calls, drafts a comb.",
    paper="https://arxiv.org/abs/2410.06916",
    options="mmspec_zoo.self_drafting.swift:SwiftOptions",
)
DEL = DrafterSpec(
    name="del",
    factory="mmspec_zoo.self_drafting.dynamic_exit:DynamicExit",
    needs=frozenset({"discrete", "hidden"}),
    offers=frozenset({"chain", "q"}),
    summary="The target's first layers draft; exit and length are chosen round by round.",
    paper="https://arxiv.org/abs/2504.05598",
    options="mmspec_zoo.self_drafting.dynamic_exit:DynamicExitOptions",
)

# Blanks, filled in any order.
XLNET = TargetSpec(
    name="xlnet",
    factory="mmspec_zoo.infill.xlnet:XLNetTarget",
    offers=frozenset({"discrete", "any-order", "truncate"}),
    words={"any-order": "The target fills the blanks of a text in any order, and scores several at once."},
    summary="XLNet of transformers, which fills the blanks of a text in any order.",
    paper="https://arxiv.org/abs/1906.08237",
    pipeline="mmspec_zoo.infill.pipeline:InfillPipeline",
    default_methods=(DefaultMethod(method="assd"),),
)
ASSD = DrafterSpec(
    name="assd",
    factory="mmspec_zoo.infill.assd:Assd",
    needs=frozenset({"discrete", "any-order"}),
    offers=frozenset({"chain", "q"}),
    summary="The target itself scores several blanks at once, as if they were independent.",
    paper="https://arxiv.org/abs/2504.20456",
)

# Lossy rules.
ROLLBACK = RuleSpec(
    name="rollback",
    factory="mmspec_zoo.relaxed.rollback:Rollback",
    needs=frozenset({"discrete", "chain"}),
    offers=frozenset({"redraw"}),
    exactness="lossy",
    summary="Accept a draft unless the target finds it very unlikely.",
    paper="https://arxiv.org/abs/2302.07863",
    options="mmspec_zoo.relaxed.rollback:RollbackOptions",
)
JUDGE = RuleSpec(
    name="judge",
    factory="mmspec_zoo.relaxed.judge:Judge",
    needs=frozenset({"discrete", "chain", "hidden"}),
    offers=frozenset({"redraw"}),
    exactness="lossy",
    summary="Accept a draft that a trained layer on the target's states finds right.",
    paper="https://arxiv.org/abs/2501.19309",
    options="mmspec_zoo.relaxed.judge:JudgeOptions",
)
TYPICAL = RuleSpec(
    name="typical",
    factory="mmspec_zoo.relaxed.typical:Typical",
    needs=frozenset({"discrete"}),
    offers=frozenset({"redraw", "rerank"}),
    exactness="lossy",
    summary="Accept drafts that are likely enough for how much the target hesitates: Medusa.",
    paper="https://arxiv.org/abs/2401.10774",
    options="mmspec_zoo.relaxed.typical:TypicalOptions",
)
FLY = RuleSpec(
    name="fly",
    factory="mmspec_zoo.relaxed.fly:Fly",
    needs=frozenset({"discrete", "chain"}),
    offers=frozenset({"redraw"}),
    exactness="lossy",
    summary="Accept what differs where the target hesitates and agrees with what follows.",
    paper="https://arxiv.org/abs/2511.22972",
    options="mmspec_zoo.relaxed.fly:FlyOptions",
)

DRAFTERS = {
    PEARL: "A smaller model drafts while the target verifies: for a core or two to spare.",
    SAGUARO: "Like pearl, with drafts for many outcomes of a round; waits for the others.",
    MIRROR_SD: "Like saguaro, for the outcomes that an early exit of the target thinks likely.",
    LAYER_SKIP: "Early exit: the target's first layers draft; for models trained for it.",
    SWIFT: "The target drafts without some sub-layers, found while it writes; no training.",
    DEL: "Early exit, whose layer and length follow what would have been accepted.",
    SPECMEMO: "A smaller model's tree, with caches that stay below memory_budget=2GiB.",
    S2D: "Sorted speculative decoding: a smaller model's layers run until it is sure.",
    AMBEDKAR: "Drafts from the bare prompt, verified behind a text such as a constitution.",
    RAPID: "For long prompts: drafts by a model, or the target, on what is retrieved.",
    VOCAB_TRIM: "A smaller model, made faster: its output layer keeps the most frequent ids.",
    OMNIDRAFT: "A smaller model with another tokenizer, and n-grams that translate its tokens.",
}
"""Drafters of texts, and what their methods are, which have their names."""
COMPONENTS = (
    XLNET,
    ASSD,
    *DRAFTERS,
    ROLLBACK,
    JUDGE,
    TYPICAL,
    FLY,
    *(drafter.method(summary, needs=TEXT) for drafter, summary in DRAFTERS.items()),
    ASSD.method(
        "An any-order model drafts several blanks at once and verifies them in order.",
        rule="rejection",
        exactness="lossless",
    ),
    MethodSpec(
        name="bild",
        drafter=DRAFT_MODEL,
        rule="rollback",
        needs=TEXT,
        exactness="lossy",
        defaults={"sure": 0.6},
        k=10,
        summary="A smaller model writes while it is sure; the target corrects what is unlikely.",
        paper="https://arxiv.org/abs/2302.07863",
    ),
    MethodSpec(
        name="fly",
        drafter=DRAFT_MODEL,
        rule="fly",
        needs=TEXT,
        exactness="lossy",
        k=15,
        summary="A smaller model writes; the target corrects what it does not go on from.",
        paper="https://arxiv.org/abs/2511.22972",
    ),
    MethodSpec(
        name="judge",
        drafter=DRAFT_MODEL,
        rule="judge",
        needs=TEXT,
        exactness="lossy",
        summary="A smaller model drafts; what a trained judge finds right stays.",
        paper="https://arxiv.org/abs/2501.19309",
    ),
)
