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


def _head(target: str, adapter: str) -> Shipped:
    """The EAGLE-3 head of `mmspec/<target>`, which the target adapter `adapter` runs."""
    return Shipped(
        name=f"{target}-eagle3",
        summary=f"An EAGLE-3 head for `mmspec/{target}`: one layer on its hidden states, with its embedding and "
        "output.",
        target=adapter,
        method="eagle",
        drafter=None,
        data=(*SOURCES, f"What `mmspec/{target}` writes behind pieces of these."),
        command=f"mmspec train text-eagle3{'' if target == 'text-14m' else f' --target mmspec/{target}'}"
        " --prose tinyshakespeare.txt",
        tags=("text-generation", "speculative-decoding", "eagle3", "draft-model"),
        measured=along_drafts,
        key_layout="speculators",
    )


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
    _head("text-14m", "transformers"),
    _head("ssm-5m", "recurrent"),
)
SHIPPED = (*MODELS, *HEADS)
