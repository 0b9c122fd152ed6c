"""The specs of the text plugin; its classes read their facts here. Imports no torch."""

from mmspec.hosts import offers
from mmspec.kits.text.manifest import DEFAULT_METHODS
from mmspec.registry import DrafterSpec, MethodSpec, TargetSpec
from mmspec_text.head_specs import HEAD_DRAFTERS, HEAD_METHODS, PPD_MODEL, TEXT

TRANSFORMERS = TargetSpec(
    name="transformers",
    factory="mmspec.hosts.target:TransformersTarget",
    offers=offers.ATTENTION,
    summary="A decoder of transformers with key-value attention, images in its prompt too.",
    pipeline="mmspec.kits.text.pipeline:TextPipeline",
    default_methods=DEFAULT_METHODS,
)

# No model beside the target.
PROMPT_LOOKUP = DrafterSpec.row(
    "prompt-lookup",
    "mmspec_text.drafters.prompt_lookup:PromptLookup",
    "discrete → chain",
    "Copies what followed the last occurrence of the latest n-gram; no model.",
    "https://github.com/apoorvumang/prompt-lookup-decoding",
)
SUFFIX = DrafterSpec.row(
    "suffix",
    "mmspec_text.drafters.suffix:Suffix",
    "discrete → chain",
    "What followed the end of the text before, here or in earlier calls; no model.",
    "https://arxiv.org/abs/2411.04975",
)
SUFFIX_TREE = DrafterSpec.row(
    "suffix-tree",
    "mmspec_text.drafters.suffix:SuffixTree",
    "discrete → tree",
    "All that often followed the end of the text before, as a tree; no model.",
    "https://arxiv.org/abs/2411.04975",
)
GRAMMAR = DrafterSpec.row(
    "grammar",
    "mmspec_text.drafters.grammar:GrammarDrafter",
    "discrete → chain",
    "What an mmspec.Grammar decides; at choices, what followed the longest suffix.",
    "https://arxiv.org/abs/2312.07104",
)
JACOBI_TEXT = DrafterSpec.row(
    "jacobi-text",
    "mmspec_text.drafters.jacobi_text:JacobiText",
    "redraw discrete → chain window q",
    "The target's own last pass over a window of tokens; no model, no training.",
    "https://arxiv.org/abs/2305.10427",
)
LOOKAHEAD = DrafterSpec.row(
    "lookahead",
    "mmspec_text.drafters.lookahead:Lookahead",
    "discrete → tree",
    "N-grams of the target's own guesses, made in the pass that verifies others.",
    "https://arxiv.org/abs/2402.02057",
)
TOKEN_RECYCLING = DrafterSpec.row(
    "token-recycling",
    "mmspec_text.drafters.token_recycling:TokenRecycling",
    "discrete → tree",
    "A tree of the successors that the target itself last ranked highest; no model.",
    "https://arxiv.org/abs/2408.08696",
)
LOOKUP_RECYCLING = DrafterSpec.row(
    "lookup-recycling",
    "mmspec_text.drafters.lookup_recycling:LookupRecycling",
    "discrete → tree",
    "Recycled successors and copies of the text, in one tree; no model.",
    "https://arxiv.org/abs/2408.08696",
)
REST = DrafterSpec.row(
    "rest",
    "mmspec_text.drafters.retrieval.rest:Rest",
    "discrete → tree",
    "The most frequent continuations in a datastore of texts, as a tree; no model.",
    "https://arxiv.org/abs/2311.08252",
)

# A smaller model drafts.
CANDIDATES = DrafterSpec.row(
    "candidates",
    "mmspec_text.drafters.candidates:TextCandidates",
    "discrete → chain",
    "transformers' own candidate generators, cross-tokenizer assistants too; one row.",
    "https://arxiv.org/abs/2502.05202",
)
DRAFT_MODEL = DrafterSpec.row(
    "draft-model",
    "mmspec_text.drafters.draft_model:TextDraftModel",
    "→ chain q",
    "A smaller language model drafts a chain; other tokenizers are mapped.",
    "https://arxiv.org/abs/2211.17192",
)
PARD = DrafterSpec.row(
    "pard",
    "mmspec_text.drafters.pard:Pard",
    "→ chain tree q",
    "A smaller language model fills in masks, and drafts all units in one pass.",
    "https://arxiv.org/abs/2504.18583",
    reads="mmspec_text.drafters.pard:is_pard",
)
DRAFT_TREE = DrafterSpec.row(
    "draft-tree",
    "mmspec_text.drafters.draft_model:TextDraftTree",
    "→ tree q",
    "A smaller language model drafts a tree: reranked, branching, or a beam.",
    "https://arxiv.org/abs/2406.16858",
)
SEQUOIA = DrafterSpec.row(
    "sequoia",
    "mmspec_text.drafters.sequoia:Sequoia",
    "→ tree q",
    "A smaller model's best static tree for the acceptance counted so far.",
    "https://arxiv.org/abs/2402.12374",
)
LLMCAD = DrafterSpec.row(
    "llmcad",
    "mmspec_text.drafters.llmcad:LLMCad",
    "rerank → tree",
    "A smaller model's tree that ends where the model is unsure.",
    "https://arxiv.org/abs/2309.04255",
)
RASD = DrafterSpec.row(
    "rasd",
    "mmspec_text.drafters.retrieval.rasd:Rasd",
    "discrete rerank → tree",
    "A smaller model's tree, and what a datastore of texts adds to it.",
    "https://arxiv.org/abs/2503.03434",
)
UNITED = DrafterSpec.row(
    "united",
    "mmspec_text.drafters.united:UnitedWithModel",
    "discrete rerank → tree",
    "A head or a smaller model, and copies of earlier text, in one tree.",
)

# The target drafts for itself.
CASCADE = DrafterSpec.row(
    "cascade",
    "mmspec_text.drafters.cascade:Cascade",
    "discrete → chain q",
    "The target itself over a small key cache drafts, and is drafted for in turn.",
    "https://arxiv.org/abs/2404.11912",
)


DRAFTERS = (
    PROMPT_LOOKUP,
    SUFFIX,
    SUFFIX_TREE,
    GRAMMAR,
    JACOBI_TEXT,
    LOOKAHEAD,
    TOKEN_RECYCLING,
    LOOKUP_RECYCLING,
    CANDIDATES,
    DRAFT_MODEL,
    PARD,
    PPD_MODEL,
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
        on_accelerator={"k": 10, "nodes": 32},  # nodes as of `token-recycling` below
    ),
    MethodSpec(
        name="plain",
        exactness="invariant",
        summary="One unit a pass, no drafts: what every other method is compared with.",
    ),
    PROMPT_LOOKUP.method("Drafts copied from the text so far; good where the output repeats the input.", k=10),
    SUFFIX.method("What followed before: in the text, other samples, earlier calls, a corpus.", k=10),
    SUFFIX_TREE.method("The same as a tree: several continuations of one suffix.", k=10),
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
    PPD_MODEL.method("A smaller model drafts, in fewer passes by prompt tokens of its own.", needs=TEXT),
    DRAFT_TREE.method("A smaller model's best nodes, expanded and reranked as in EAGLE-2.", needs=TEXT),
    SEQUOIA.method("A smaller model's static tree, best for measured acceptance and the machine.", needs=TEXT),
    LLMCAD.method("A smaller model's tree that ends where it is unsure, by a threshold that adapts.", needs=TEXT),
    DRAFT_TREE.method(
        "A smaller model's likeliest nodes, in a tree of whatever form they have.",
        name="dyspec",
        needs=TEXT,
        k=10,
        defaults={"form": "heap", "nodes": 64},  # notes on the paper: 64 to 768 nodes, 10 to 30 deep
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
        k=6,
        defaults={"cache": "retrieval", "budget": 4096},  # the released test/on_chip.py: gamma, budget
    ),
)
COMPONENTS = (TRANSFORMERS, *DRAFTERS, *METHODS)
