"""What the cards of the shipped text models say."""

from collections.abc import Mapping
from typing import Any

from mmspec.kits.text.cards import SOURCES, held_out
from mmspec.report.cards import Shipped
from mmspec.report.views import View

_COMMAND = "mmspec train text --prose tinyshakespeare.txt"


def along_drafts(facts: Mapping[str, Any]) -> View:
    """A table of what a head does on held-out text, depth by depth.

    Args:
        facts: The head's `training.json`.
    """
    held = facts["held_out"]
    rows = [
        (text, f"{depth}", f"{right:.2f}", f"{accepted:.2f}")
        for text, found in held.items()
        for depth, (right, accepted) in enumerate(zip(found["right"], found["accepted"], strict=True), 1)
    ]
    chains = ", ".join(f"{found['length']:.2f} tokens a pass on {text}" for text, found in held.items())
    note = (
        "Likeliest: how often the head's likeliest token is the target's, where it was at all depths before. Accepted: "
        f"how often an exact rule takes a token that was sampled. So a greedy chain would have {chains}."
    )
    return View("Along its drafts", ("held-out text", "depth", "likeliest", "accepted"), rows, note)


MODELS = (
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
HEADS = (
    Shipped(
        name="text-14m-eagle3",
        summary="An EAGLE-3 head for `mmspec/text-14m`: one layer on its hidden states, with its embedding and output.",
        target="transformers",
        method="eagle",
        drafter=None,
        data=(*SOURCES, "What `mmspec/text-14m` writes behind pieces of these."),
        command="mmspec train text-eagle3 --prose tinyshakespeare.txt",
        tags=("text-generation", "speculative-decoding", "eagle3", "draft-model"),
        measured=along_drafts,
        key_layout="speculators",
    ),
)
SHIPPED = (*MODELS, *HEADS)
