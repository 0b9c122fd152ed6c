"""What the text plugin offers that is about the vocabulary of a draft model."""

from mmspec.registry import DrafterSpec, MethodSpec

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
VOCABULARY_DRAFTERS = (VOCAB_TRIM, OMNIDRAFT)
VOCABULARY_METHODS = (
    MethodSpec(
        name="vocab-trim",
        drafter="vocab-trim",
        needs=frozenset({"text"}),
        exactness="invariant",
        summary="A smaller model, made faster: its output layer keeps the most frequent ids.",
        paper="https://arxiv.org/abs/2506.22694",
    ),
    MethodSpec(
        name="omnidraft",
        drafter="omnidraft",
        needs=frozenset({"text"}),
        exactness="invariant",
        summary="A smaller model with another tokenizer, and n-grams that translate its tokens.",
        paper="https://arxiv.org/abs/2507.02659",
    ),
)
