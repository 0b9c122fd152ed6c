"""What the components of the text plugin are; its classes read their facts here. Imports no torch."""

from mmspec.hosts import offers
from mmspec.kits.text.manifest import DEFAULT_METHODS
from mmspec.registry import DefaultMethod, DrafterSpec, MethodSpec, RuleSpec, TargetSpec
from mmspec_text.head_specs import HEAD_DRAFTERS, HEAD_METHODS, TEXT

TRANSFORMERS = TargetSpec(
    name="transformers",
    factory="mmspec.hosts.target:TransformersTarget",
    offers=offers.ATTENTION,
    summary="A decoder of transformers with key-value attention, images in its prompt too.",
    pipeline="mmspec.kits.text.pipeline:TextPipeline",
    default_methods=DEFAULT_METHODS,
)
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

# No model beside the target.
PROMPT_LOOKUP = DrafterSpec(
    name="prompt-lookup",
    factory="mmspec_text.drafters.prompt_lookup:PromptLookup",
    needs=frozenset({"discrete"}),
    offers=frozenset({"chain"}),
    summary="Copies what followed the last occurrence of the latest n-gram; no model.",
    paper="https://github.com/apoorvumang/prompt-lookup-decoding",
    options="mmspec_text.drafters.prompt_lookup:PromptLookupOptions",
)
SUFFIX = DrafterSpec(
    name="suffix",
    factory="mmspec_text.drafters.suffix:Suffix",
    needs=frozenset({"discrete"}),
    offers=frozenset({"chain"}),
    summary="What followed the longest suffix most often, in the text or a corpus; no model.",
    paper="https://arxiv.org/abs/2411.04975",
    options="mmspec_text.drafters.suffix:SuffixOptions",
)
GRAMMAR = DrafterSpec(
    name="grammar",
    factory="mmspec_text.drafters.grammar:GrammarDrafter",
    needs=frozenset({"discrete"}),
    offers=frozenset({"chain"}),
    summary="What an mmspec.Grammar decides; at choices, what followed the longest suffix.",
    paper="https://arxiv.org/abs/2312.07104",
    options="mmspec_text.drafters.grammar:GrammarOptions",
)
JACOBI_TEXT = DrafterSpec(
    name="jacobi-text",
    factory="mmspec_text.drafters.jacobi_text:JacobiText",
    needs=frozenset({"redraw", "discrete"}),
    offers=frozenset({"chain", "window", "q"}),
    summary="The target's own last pass over a window of tokens; no model, no training.",
    paper="https://arxiv.org/abs/2305.10427",
    options="mmspec_text.drafters.jacobi_text:JacobiTextOptions",
)
LOOKAHEAD = DrafterSpec(
    name="lookahead",
    factory="mmspec_text.drafters.lookahead:Lookahead",
    needs=frozenset({"discrete"}),
    offers=frozenset({"tree"}),
    summary="N-grams of the target's own guesses, made in the pass that verifies others.",
    paper="https://arxiv.org/abs/2402.02057",
    options="mmspec_text.drafters.lookahead:LookaheadOptions",
)
TOKEN_RECYCLING = DrafterSpec(
    name="token-recycling",
    factory="mmspec_text.drafters.token_recycling:TokenRecycling",
    needs=frozenset({"discrete"}),
    offers=frozenset({"tree"}),
    summary="A tree of the successors that the target itself last ranked highest; no model.",
    paper="https://arxiv.org/abs/2408.08696",
    options="mmspec_text.drafters.token_recycling:TokenRecyclingOptions",
)
LOOKUP_RECYCLING = DrafterSpec(
    name="lookup-recycling",
    factory="mmspec_text.drafters.lookup_recycling:LookupRecycling",
    needs=frozenset({"discrete"}),
    offers=frozenset({"tree"}),
    summary="Prompt lookup, and token recycling for rows where it finds nothing.",
    paper="https://arxiv.org/abs/2408.08696",
    options="mmspec_text.drafters.lookup_recycling:LookupRecyclingOptions",
)
REST = DrafterSpec(
    name="rest",
    factory="mmspec_text.drafters.retrieval.rest:Rest",
    needs=frozenset({"discrete"}),
    offers=frozenset({"tree"}),
    summary="The most frequent continuations in a datastore of texts, as a tree; no model.",
    paper="https://arxiv.org/abs/2311.08252",
    options="mmspec_text.drafters.retrieval.rest:RestOptions",
)

# A smaller model drafts.
CANDIDATES = DrafterSpec(
    name="candidates",
    factory="mmspec_text.drafters.candidates:TextCandidates",
    needs=frozenset({"discrete"}),
    offers=frozenset({"chain"}),
    summary="transformers' own candidate generators, cross-tokenizer assistants too; one row.",
    paper="https://arxiv.org/abs/2502.05202",
    options="mmspec_text.drafters.candidates:CandidatesOptions",
)
DRAFT_MODEL = DrafterSpec(
    name="draft-model",
    factory="mmspec_text.drafters.draft_model:TextDraftModel",
    offers=frozenset({"chain", "q"}),
    summary="A smaller language model drafts a chain; other tokenizers are mapped.",
    paper="https://arxiv.org/abs/2211.17192",
    options="mmspec_text.drafters.draft_model:DraftModelOptions",
)
DRAFT_TREE = DrafterSpec(
    name="draft-tree",
    factory="mmspec_text.drafters.draft_tree:TextDraftTree",
    offers=frozenset({"tree", "q"}),
    summary="A smaller language model drafts a tree: reranked, branching, or a beam.",
    paper="https://arxiv.org/abs/2406.16858",
    options="mmspec_text.drafters.draft_tree:DraftTreeOptions",
)
SEQUOIA = DrafterSpec(
    name="sequoia",
    factory="mmspec_text.drafters.sequoia:Sequoia",
    offers=frozenset({"tree", "q"}),
    summary="A smaller model's best static tree for the acceptance counted so far.",
    paper="https://arxiv.org/abs/2402.12374",
    options="mmspec_text.drafters.sequoia:SequoiaOptions",
)
LLMCAD = DrafterSpec(
    name="llmcad",
    factory="mmspec_text.drafters.llmcad:LLMCad",
    needs=frozenset({"rerank"}),
    offers=frozenset({"tree"}),
    summary="A smaller model's tree that ends where the model is unsure.",
    paper="https://arxiv.org/abs/2309.04255",
    options="mmspec_text.drafters.llmcad:LLMCadOptions",
)
RASD = DrafterSpec(
    name="rasd",
    factory="mmspec_text.drafters.retrieval.rasd:Rasd",
    needs=frozenset({"discrete", "rerank"}),
    offers=frozenset({"tree"}),
    summary="A smaller model's tree, and what a datastore of texts adds to it.",
    paper="https://arxiv.org/abs/2503.03434",
    options="mmspec_text.drafters.retrieval.rasd:RasdOptions",
)
SPECMEMO = DrafterSpec(
    name="specmemo",
    factory="mmspec_text.drafters.specmemo:SpecMemo",
    offers=frozenset({"tree", "q"}),
    summary="A smaller model drafts a tree, within a budget of bytes for both caches.",
    paper="https://arxiv.org/abs/2506.01986",
    options="mmspec_text.drafters.specmemo:SpecMemoOptions",
)
S2D = DrafterSpec(
    name="s2d",
    factory="mmspec_text.drafters.s2d:S2D",
    offers=frozenset({"chain", "q"}),
    summary="A smaller model that draws each unit from the first of its exits that is sure.",
    paper="https://arxiv.org/abs/2407.01955",
    options="mmspec_text.drafters.s2d:S2DOptions",
)
VOCAB_TRIM = DrafterSpec(
    name="vocab-trim",
    factory="mmspec_text.drafters.vocab_trim:VocabTrim",
    offers=frozenset({"chain", "q"}),
    summary="A smaller language model whose output layer keeps the most frequent ids alone.",
    paper="https://arxiv.org/abs/2506.22694",
    options="mmspec_text.drafters.vocab_trim:VocabTrimOptions",
)
OMNIDRAFT = DrafterSpec(
    name="omnidraft",
    factory="mmspec_text.drafters.omnidraft.drafter:OmniDraft",
    needs=frozenset({"discrete"}),
    offers=frozenset({"chain"}),
    summary="A smaller model with another tokenizer, whose tokens are joined to the target's.",
    paper="https://arxiv.org/abs/2507.02659",
    options="mmspec_text.drafters.omnidraft.drafter:OmniDraftOptions",
)
AMBEDKAR = DrafterSpec(
    name="ambedkar",
    factory="mmspec_text.drafters.ambedkar:Ambedkar",
    offers=frozenset({"chain", "q"}),
    summary="A smaller model on the bare prompt drafts for the model behind a condition.",
    paper="https://arxiv.org/abs/2509.02133",
    options="mmspec_text.drafters.ambedkar:AmbedkarOptions",
    wrt="the model's distribution behind the condition",
)
RAPID = DrafterSpec(
    name="rapid",
    factory="mmspec_text.drafters.rapid:Rapid",
    offers=frozenset({"chain", "q"}),
    summary="A model, or the target itself, on the retrieved part of a long prompt.",
    paper="https://arxiv.org/abs/2502.20330",
    options="mmspec_text.drafters.rapid:RapidOptions",
)

# A smaller model drafts while the target verifies.
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

# The target drafts for itself.
CASCADE = DrafterSpec(
    name="cascade",
    factory="mmspec_text.drafters.cascade:Cascade",
    needs=frozenset({"discrete"}),
    offers=frozenset({"chain", "q"}),
    summary="The target itself over a small key cache drafts, and is drafted for in turn.",
    paper="https://arxiv.org/abs/2404.11912",
    options="mmspec_text.drafters.cascade:CascadeOptions",
)
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
ASSD = DrafterSpec(
    name="assd",
    factory="mmspec_text.drafters.assd:Assd",
    needs=frozenset({"discrete", "any-order"}),
    offers=frozenset({"chain", "q"}),
    summary="The target itself scores several blanks at once, as if they were independent.",
    paper="https://arxiv.org/abs/2504.20456",
)

# Lossy rules.
ROLLBACK = RuleSpec(
    name="rollback",
    factory="mmspec_text.rules.rollback:Rollback",
    needs=frozenset({"discrete", "chain"}),
    offers=frozenset({"redraw"}),
    exactness="lossy",
    summary="Accept a draft unless the target finds it very unlikely.",
    paper="https://arxiv.org/abs/2302.07863",
    options="mmspec_text.rules.rollback:RollbackOptions",
)
JUDGE = RuleSpec(
    name="judge",
    factory="mmspec_text.rules.judge:Judge",
    needs=frozenset({"discrete", "chain", "hidden"}),
    offers=frozenset({"redraw"}),
    exactness="lossy",
    summary="Accept a draft that a trained layer on the target's states finds right.",
    paper="https://arxiv.org/abs/2501.19309",
    options="mmspec_text.rules.judge:JudgeOptions",
)

DRAFTERS = (
    PROMPT_LOOKUP,
    SUFFIX,
    GRAMMAR,
    JACOBI_TEXT,
    LOOKAHEAD,
    TOKEN_RECYCLING,
    LOOKUP_RECYCLING,
    CANDIDATES,
    DRAFT_MODEL,
    DRAFT_TREE,
    SEQUOIA,
    LLMCAD,
    CASCADE,
    REST,
    RASD,
    PEARL,
    SAGUARO,
    MIRROR_SD,
    LAYER_SKIP,
    SWIFT,
    DEL,
    *HEAD_DRAFTERS,
    SPECMEMO,
    S2D,
    AMBEDKAR,
    RAPID,
    VOCAB_TRIM,
    OMNIDRAFT,
    ASSD,
)
METHODS = (
    MethodSpec(
        name="auto",
        drafter="lookup-recycling",
        exactness="invariant",
        summary="What a given draft model or the card calls for; else drafts without a model.",
    ),
    MethodSpec(
        name="plain",
        exactness="invariant",
        summary="One unit a pass, no drafts: what every other method is compared with.",
    ),
    PROMPT_LOOKUP.method("Drafts copied from the text so far; good where the output repeats the input."),
    SUFFIX.method("Statistics of the text, other samples of it, earlier calls, a corpus of yours."),
    GRAMMAR.method("For calls with an mmspec.Grammar: drafts what the grammar decides."),
    JACOBI_TEXT.method("Jacobi decoding of texts: the last pass's guesses are the next draft.", needs=TEXT),
    LOOKAHEAD.method("Lookahead decoding: a window of guesses beside the draft makes the next n-grams.", needs=TEXT),
    TOKEN_RECYCLING.method("A tree of recycled candidates; needs no model and gets better as it goes."),
    DRAFT_MODEL.method(
        "Drafts by a smaller model that sees the target's own noise.",
        needs=TEXT,
        paper="https://arxiv.org/abs/2408.07978",
    ),
    DRAFT_TREE.method("A smaller model's best nodes, expanded and reranked as in EAGLE-2.", needs=TEXT),
    SEQUOIA.method("A smaller model's static tree, best for measured acceptance and the machine.", needs=TEXT),
    LLMCAD.method("A smaller model's tree that ends where it is unsure, by a threshold that adapts.", needs=TEXT),
    DRAFT_TREE.method(
        "A smaller model's likeliest nodes, in a tree of whatever form they have.",
        name="dyspec",
        needs=TEXT,
        defaults={"form": "greedy"},
        paper="https://arxiv.org/abs/2410.11744",
    ),
    DRAFT_TREE.method(
        "Recursive speculative decoding: a stochastic beam, verified sibling by sibling.",
        name="rsd",
        rule="recursive-rejection",
        needs=TEXT,
        exactness="lossless",
        defaults={"form": "beam"},
        paper="https://arxiv.org/abs/2402.14160",
    ),
    CASCADE.method("Three levels, for long texts: no model, a small key cache, the whole one.", needs=TEXT),
    REST.method("Drafts from texts like those that are to be written: corpus=<file>.", needs=TEXT),
    RASD.method("A smaller model, and texts like those that are to be written: corpus=<file>.", needs=TEXT),
    PEARL.method("A smaller model drafts while the target verifies: for a core or two to spare.", needs=TEXT),
    SAGUARO.method("Like pearl, with drafts for many outcomes of a round; waits for the others.", needs=TEXT),
    MIRROR_SD.method("Like saguaro, for the outcomes that an early exit of the target thinks likely.", needs=TEXT),
    LAYER_SKIP.method("Early exit: the target's first layers draft; for models trained for it.", needs=TEXT),
    SWIFT.method("The target drafts without some sub-layers, found while it writes; no training.", needs=TEXT),
    DEL.method("Early exit, whose layer and length follow what would have been accepted.", needs=TEXT),
    *HEAD_METHODS,
    DRAFT_MODEL.method(
        "A smaller model writes while it is sure; the target corrects what is unlikely.",
        name="bild",
        rule="rollback",
        needs=TEXT,
        exactness="lossy",
        defaults={"sure": 0.6},
        paper="https://arxiv.org/abs/2302.07863",
    ),
    DRAFT_MODEL.method(
        "A smaller model drafts; what a trained judge finds right stays.",
        name="judge",
        rule="judge",
        needs=TEXT,
        exactness="lossy",
        paper="https://arxiv.org/abs/2501.19309",
    ),
    CASCADE.method(
        "Three levels, for long texts; the middle one sees the chunks that matter.",
        name="triforce",
        needs=TEXT,
        defaults={"cache": "retrieval"},
    ),
    SPECMEMO.method("A smaller model's tree, with caches that stay below memory_budget=2GiB.", needs=TEXT),
    S2D.method("Sorted speculative decoding: a smaller model's layers run until it is sure.", needs=TEXT),
    AMBEDKAR.method("Drafts from the bare prompt, verified behind a text such as a constitution.", needs=TEXT),
    RAPID.method("For long prompts: drafts by a model, or the target, on what is retrieved.", needs=TEXT),
    VOCAB_TRIM.method("A smaller model, made faster: its output layer keeps the most frequent ids.", needs=TEXT),
    OMNIDRAFT.method("A smaller model with another tokenizer, and n-grams that translate its tokens.", needs=TEXT),
    ASSD.method(
        "An any-order model drafts several blanks at once and verifies them in order.",
        rule="rejection",
        exactness="lossless",
    ),
)
COMPONENTS = (TRANSFORMERS, XLNET, *DRAFTERS, ROLLBACK, JUDGE, *METHODS)
