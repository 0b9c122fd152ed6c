"""Drafters and methods for long texts and small memory, as data. Imports no torch."""

from mmspec.registry import DrafterSpec, MethodSpec

SPECMEMO = DrafterSpec(
    name="specmemo",
    factory="mmspec_text.drafters.specmemo:SpecMemo",
    offers=frozenset({"tree", "q"}),
    summary="A smaller model drafts a tree, within a budget of bytes for both caches.",
    paper="https://arxiv.org/abs/2506.01986",
    options="mmspec_text.drafters.specmemo:SpecMemoOptions",
)
LONG_TEXT_DRAFTERS = (SPECMEMO,)
LONG_TEXT_METHODS = (
    MethodSpec(
        name="triforce",
        drafter="cascade",
        needs=frozenset({"text"}),
        exactness="invariant",
        defaults={"cache": "retrieval"},
        summary="Three levels, for long texts; the middle one sees the chunks that matter.",
        paper="https://arxiv.org/abs/2404.11912",
    ),
    MethodSpec(
        name="specmemo",
        drafter="specmemo",
        needs=frozenset({"text"}),
        exactness="invariant",
        summary="A smaller model's tree, with caches that stay below memory_budget=2GiB.",
        paper=SPECMEMO.paper,
    ),
)
