"""The specs of the text plugin; its classes read their facts here. Imports no torch."""

from mmspec.hosts import offers
from mmspec.kits.text.manifest import DEFAULT_METHODS
from mmspec.registry import DrafterSpec, MethodSpec, TargetSpec
from mmspec_text.head_specs import HEAD_DRAFTERS, HEAD_METHODS, TEXT

TRANSFORMERS = TargetSpec(
    name="transformers",
    factory="mmspec.hosts.target:TransformersTarget",
    offers=offers.ATTENTION,
    summary="A decoder of transformers with key-value attention, images in its prompt too.",
    pipeline="mmspec.kits.text.pipeline:TextPipeline",
    default_methods=DEFAULT_METHODS,
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
    factory="mmspec_text.drafters.two_drafters:LookupRecycling",
    needs=frozenset({"discrete"}),
    offers=frozenset({"tree"}),
    summary="Prompt lookup, and token recycling for rows where it finds nothing.",
    paper="https://arxiv.org/abs/2408.08696",
    options="mmspec_text.drafters.two_drafters:LookupRecyclingOptions",
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
PARD = DrafterSpec(
    name="pard",
    factory="mmspec_text.drafters.pard:Pard",
    offers=frozenset({"chain", "tree", "q"}),
    summary="A smaller language model fills in masks, and drafts all units in one pass.",
    paper="https://arxiv.org/abs/2504.18583",
    options="mmspec_text.drafters.pard:PardOptions",
    reads="mmspec_text.drafters.pard:is_pard",
)
DRAFT_TREE = DrafterSpec(
    name="draft-tree",
    factory="mmspec_text.drafters.draft_model:TextDraftTree",
    offers=frozenset({"tree", "q"}),
    summary="A smaller language model drafts a tree: reranked, branching, or a beam.",
    paper="https://arxiv.org/abs/2406.16858",
    options="mmspec_text.drafters.draft_model:DraftTreeOptions",
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
UNITED = DrafterSpec(
    name="united",
    factory="mmspec_text.drafters.united:UnitedWithModel",
    needs=frozenset({"discrete", "rerank"}),
    offers=frozenset({"tree"}),
    summary="A head or a smaller model, and copies of earlier text, in one tree.",
    options="mmspec_text.drafters.united:UnitedOptions",
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
    PARD,
    DRAFT_TREE,
    SEQUOIA,
    LLMCAD,
    CASCADE,
    REST,
    RASD,
    UNITED,
    *HEAD_DRAFTERS,
)
METHODS = (
    MethodSpec(
        name="auto",
        drafter="lookup-recycling",
        exactness="invariant",
        summary="What a given draft model or the card calls for; else drafts without a model.",
        on_accelerator={"k": 10, "nodes": 32},  # see `token-recycling` below: 1.89, 2.09, 2.19 tokens a pass
    ),
    MethodSpec(
        name="plain",
        exactness="invariant",
        summary="One unit a pass, no drafts: what every other method is compared with.",
    ),
    PROMPT_LOOKUP.method("Drafts copied from the text so far; good where the output repeats the input.", k=10),
    SUFFIX.method("Statistics of the text, other samples of it, earlier calls, a corpus of yours.", k=10),
    TOKEN_RECYCLING.method(
        "A tree of recycled candidates; needs no model and gets better as it goes.",
        # SmolLM2, greedy, 80 tokens after six prompts of Spec-Bench: 1.70, 1.90, 2.05, 2.22 tokens a pass with 8, 16,
        # 32, 64 nodes. On an H100 a recorded pass costs 1.25 plain ones with 16 and 1.35 with 64, a compiled one 1.30
        # and 1.85 (model_cards/gpu.md).
        on_accelerator={"k": 6, "nodes": 32},
    ),
    GRAMMAR.method("For calls with an mmspec.Grammar: drafts what the grammar decides."),
    JACOBI_TEXT.method("Jacobi decoding of texts: the last pass's guesses are the next draft.", needs=TEXT),
    LOOKAHEAD.method(
        "Lookahead decoding: a window of guesses beside the draft makes the next n-grams.",
        needs=TEXT,
        on_accelerator={"k": 9, "n": 7, "guesses": 7},  # W = 5, N = 7, G = 7: the released defaults
    ),
    DRAFT_MODEL.method(
        "Drafts by a smaller model that sees the target's own noise.",
        needs=TEXT,
        paper="https://arxiv.org/abs/2408.07978",
    ),
    PARD.method("A smaller model that fills in masks drafts all units in one pass.", needs=TEXT, k=12),
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
    REST.method(
        "Drafts from texts like those that are to be written: corpus=<file>.",
        needs=TEXT,
        on_accelerator={"k": 10, "nodes": 64},
    ),
    RASD.method("A smaller model, and texts like those that are to be written: corpus=<file>.", needs=TEXT),
    UNITED.method(
        "A head or a smaller model, and copies of the text so far, share one tree.",
        needs=TEXT,
        k=10,
        on_accelerator={"beside": "prompt-lookup"},  # which drafts on the device, inside of captured rounds
    ),
    *HEAD_METHODS,
    CASCADE.method(
        "Three levels, for long texts; the middle one sees the chunks that matter.",
        name="triforce",
        needs=TEXT,
        defaults={"cache": "retrieval"},
    ),
)
COMPONENTS = (TRANSFORMERS, *DRAFTERS, *METHODS)
