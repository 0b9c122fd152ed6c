"""What the text plugin offers that looks drafts up in texts of the user's."""

from mmspec.registry import DrafterSpec, MethodSpec

REST = DrafterSpec(
    name="rest",
    factory="mmspec_text.drafters.retrieval.rest:Rest",
    needs=frozenset({"discrete"}),
    offers=frozenset({"tree"}),
    summary="The most frequent continuations in a datastore of texts, as a tree; no model.",
    paper="https://arxiv.org/abs/2311.08252",
    options="mmspec_text.drafters.retrieval.rest:RestOptions",
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
RETRIEVAL_DRAFTERS = (REST, RASD)
RETRIEVAL_METHODS = (
    MethodSpec(
        name="rest",
        drafter="rest",
        needs=frozenset({"text"}),
        exactness="invariant",
        summary="Drafts from texts like those that are to be written: corpus=<file>.",
        paper="https://arxiv.org/abs/2311.08252",
    ),
    MethodSpec(
        name="rasd",
        drafter="rasd",
        needs=frozenset({"text"}),
        exactness="invariant",
        summary="A smaller model, and texts like those that are to be written: corpus=<file>.",
        paper="https://arxiv.org/abs/2503.03434",
    ),
)
