"""The specs of the zoo; its classes read their facts here. Imports no torch."""

from collections.abc import Mapping
from typing import Any

from mmspec.registry import DefaultMethod, DrafterSpec, MethodSpec, RuleSpec, TargetSpec

TEXT = frozenset({"text"})
DRAFT_MODEL = "text:draft-model"  # the drafter of lossy methods: the text plugin's, by its name at the door

# A smaller model drafts while the target verifies.
PEARL = DrafterSpec.row(
    "pearl",
    "mmspec_zoo.overlap.pearl:Pearl",
    "discrete rerank → chain",
    "A smaller model that drafts while the target verifies, in its own process.",
    "https://arxiv.org/abs/2408.11850",
)
SAGUARO = DrafterSpec.row(
    "saguaro",
    "mmspec_zoo.overlap.saguaro:Saguaro",
    "discrete rerank → chain",
    "A smaller model that drafts for many outcomes of a round ahead of its end.",
    "https://arxiv.org/abs/2603.03251",
)
MIRROR_SD = DrafterSpec.row(
    "mirror-sd",
    "mmspec_zoo.overlap.mirror_sd:MirrorSD",
    "discrete rerank → chain",
    "A smaller model that drafts for what an early exit of the target says.",
    "https://arxiv.org/abs/2510.13161",
)

# A smaller model that is cut, joined or shared.
VOCAB_TRIM = DrafterSpec.row(
    "vocab-trim",
    "mmspec_zoo.vocabularies.vocab_trim:VocabTrim",
    "→ chain q",
    "A smaller language model whose output layer keeps the most frequent ids alone.",
    "https://arxiv.org/abs/2506.22694",
)
OMNIDRAFT = DrafterSpec.row(
    "omnidraft",
    "mmspec_zoo.vocabularies.omnidraft:OmniDraft",
    "discrete → chain q",
    "A smaller model with another tokenizer, whose tokens are joined to the target's.",
    "https://arxiv.org/abs/2507.02659",
)
S2D = DrafterSpec.row(
    "s2d",
    "mmspec_zoo.sorted.s2d:S2D",
    "→ chain q",
    "A smaller model that draws each unit from the first of its exits that is sure.",
    "https://arxiv.org/abs/2407.01955",
)
SPECMEMO = DrafterSpec.row(
    "specmemo",
    "mmspec_zoo.specmemo:SpecMemo",
    "→ tree q",
    "A smaller model drafts a tree, within a budget of bytes for all that both take.",
    "https://arxiv.org/abs/2506.01986",
)

# Two prompts.
AMBEDKAR = DrafterSpec.row(
    "ambedkar",
    "mmspec_zoo.conditioned.ambedkar:Ambedkar",
    "→ chain q",
    "A smaller model on the bare prompt drafts for the model behind a condition.",
    "https://arxiv.org/abs/2509.02133",
    wrt="the model's distribution behind the condition",
)
RAPID = DrafterSpec.row(
    "rapid",
    "mmspec_zoo.conditioned.rapid:Rapid",
    "→ chain q",
    "A model, or the target itself, on the retrieved part of a long prompt.",
    "https://arxiv.org/abs/2502.20330",
    wrt="the target's distribution mixed with that behind the short prompt",
)

# The target drafts for itself.
LAYER_SKIP = DrafterSpec.row(
    "layer-skip",
    "mmspec_zoo.self_drafting.layer_skip:LayerSkip",
    "discrete → chain q",
    "The target's first layers and its output layer draft a chain.",
    "https://arxiv.org/abs/2404.16710",
)
SWIFT = DrafterSpec.row(
    "swift",
    "mmspec_zoo.self_drafting.swift:Swift",
    "discrete rerank → tree",
    "The target without some sub-layers, found during calls, drafts a comb.",
    "https://arxiv.org/abs/2410.06916",
)
DEL = DrafterSpec.row(
    "del",
    "mmspec_zoo.self_drafting.dynamic_exit:DynamicExit",
    "discrete hidden → chain q",
    "The target's first layers draft; exit and length are chosen round by round.",
    "https://arxiv.org/abs/2504.05598",
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
ASSD = DrafterSpec.row(
    "assd",
    "mmspec_zoo.infill.assd:Assd",
    "discrete any-order → chain q",
    "The target itself scores several blanks at once, as if they were independent.",
    "https://arxiv.org/abs/2504.20456",
)

# Lossy rules.
ROLLBACK = RuleSpec.row(
    "rollback",
    "mmspec_zoo.relaxed.rollback:Rollback",
    "discrete chain → redraw",
    "Accept a draft unless the target finds it very unlikely.",
    "https://arxiv.org/abs/2302.07863",
    exactness="lossy",
)
LENIENT = RuleSpec.row(
    "lenient",
    "mmspec_zoo.relaxed.lenient:Lenient",
    "discrete chain → redraw",
    "Speculative sampling that accepts by p / (ε q): DistillSpec's lenience.",
    "https://arxiv.org/abs/2310.08461",
    exactness="lossy",
)
COUNTERFACTUAL = RuleSpec.row(
    "counterfactual",
    "mmspec_zoo.conditioned.counterfactual:Counterfactual",
    "discrete → redraw counterfactual",
    "Emit the proposal that a swap of identities changes least: AMBEDKAR.",
    "https://arxiv.org/abs/2509.02133",
    exactness="lossy",
    words={"counterfactual": "The rule chooses among the proposals of a draft by what swapped identities change."},
)
JUDGE = RuleSpec.row(
    "judge",
    "mmspec_zoo.relaxed.judge:Judge",
    "discrete chain hidden → redraw",
    "Accept a draft that a trained layer on the target's states finds right.",
    "https://arxiv.org/abs/2501.19309",
    exactness="lossy",
)
TYPICAL = RuleSpec.row(
    "typical",
    "mmspec_zoo.relaxed.typical:Typical",
    "discrete → redraw rerank",
    "Accept drafts that are likely enough for how much the target hesitates: Medusa.",
    "https://arxiv.org/abs/2401.10774",
    exactness="lossy",
)
FLY = RuleSpec.row(
    "fly",
    "mmspec_zoo.relaxed.fly:Fly",
    "discrete chain → redraw",
    "Accept what differs where the target hesitates and agrees with what follows.",
    "https://arxiv.org/abs/2511.22972",
    exactness="lossy",
)

DRAFTERS = {
    PEARL: "A smaller model drafts while the target verifies: for a core or two to spare.",
    SAGUARO: "Like pearl, with drafts for many outcomes of a round; waits for the others.",
    MIRROR_SD: "Like saguaro, for the outcomes that an early exit of the target thinks likely.",
    LAYER_SKIP: "Early exit: the target's first layers draft; for models trained for it.",
    SWIFT: "The target drafts without some sub-layers, found while it writes; no training.",
    DEL: "Early exit, whose layer and length follow what would have been accepted.",
    SPECMEMO: "A smaller model's tree; both models stay below memory_budget=2GiB.",
    S2D: "Sorted speculative decoding: a smaller model's layers run until it is sure.",
    AMBEDKAR: "Drafts from the bare prompt, verified behind a text such as a constitution.",
    RAPID: "For long prompts: drafts by a model, or the target, on what is retrieved.",
    VOCAB_TRIM: "A smaller model, made faster: its output layer keeps the most frequent ids.",
    OMNIDRAFT: "A smaller model with another tokenizer, and n-grams that translate its tokens.",
}
"""Drafters of texts, and what their methods are, which have their names."""
RELEASED: Mapping[DrafterSpec, Mapping[str, Any]] = {
    MIRROR_SD: {"k": 7, "defaults": {"branches": 8}},  # the paper's γ and κ, from notes on it
    SWIFT: {"k": 25, "defaults": {"nodes": 250}},  # max_step_draft of model/swift/utils.py, and all of its candidates
    RAPID: {"k": 10, "defaults": {"eta": 10.0}},  # speculative_margin of the README, num_assistant_tokens of eval/
}
"""Values that authors run the methods of these drafters with, where the drafters have others."""
COMPONENTS = (
    XLNET,
    ASSD,
    *DRAFTERS,
    ROLLBACK,
    LENIENT,
    COUNTERFACTUAL,
    JUDGE,
    TYPICAL,
    FLY,
    *(drafter.method(summary, needs=TEXT, **RELEASED.get(drafter, {})) for drafter, summary in DRAFTERS.items()),
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
