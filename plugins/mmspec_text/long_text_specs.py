"""Methods for long texts and small memory, as data. Imports no torch."""

from mmspec.registry import MethodSpec

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
)
