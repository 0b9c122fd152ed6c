"""What the cards of the shipped text models say."""

from mmspec.kits.text.cards import SOURCES, held_out
from mmspec.report.cards import Shipped

_COMMAND = "mmspec train text --prose tinyshakespeare.txt"

SHIPPED = (
    Shipped(
        name="text-14m",
        summary="A Llama-architecture language model that continues Python and Shakespeare; byte-level BPE of 4,096.",
        target="transformers",
        method="suffix",
        policy="goodput",
        k=10,
        drafter=None,
        data=SOURCES,
        command=_COMMAND,
        tags=("text-generation", "speculative-decoding", "llama"),
        measured=held_out,
    ),
    Shipped(
        name="text-1m",
        summary="A drafter for `mmspec/text-14m`, distilled from it; same tokenizer.",
        target="transformers",
        method="plain",
        drafter=None,
        data=SOURCES,
        command=_COMMAND,
        tags=("text-generation", "speculative-decoding", "draft-model", "llama"),
        measured=held_out,
    ),
)
