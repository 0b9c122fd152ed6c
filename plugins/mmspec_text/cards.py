"""What the cards of the shipped text models say."""

from collections.abc import Mapping
from typing import Any

from mmspec.kits.text.cards import SOURCES, held_out
from mmspec.report.cards import Shipped
from mmspec.report.views import View

_COMMAND = "python -m tools.train text --prose tinyshakespeare.txt"


def along_drafts(facts: Mapping[str, Any]) -> View:
    """A table of what a head does on held-out text, depth by depth."""
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


def _head(target: str, host: str, kind: str, summary: str, method: str, key_layout: str) -> Shipped:
    """A shipped head.

    Args:
        target: Its target's name, without `mmspec/`.
        host: The component that decodes with that target.
        kind: The kind of head.
        summary: The head in a sentence.
        method: The method that drafts with it.
        key_layout: Whose names its weights have.
    """
    other = "" if target == "text-14m" else f" --target mmspec/{target}"
    return Shipped(
        name=f"{target}-{kind}",
        summary=summary,
        target=host,
        method=method,
        drafter=None,
        data=(*SOURCES, f"What `mmspec/{target}` writes behind pieces of these."),
        command=f"python -m tools.train text-{kind}{other} --prose tinyshakespeare.txt",
        tags=("text-generation", "speculative-decoding", kind, "draft-model"),
        measured=along_drafts,
        key_layout=key_layout,
    )


def _eagle(target: str, host: str) -> Shipped:
    summary = f"An EAGLE-3 head for `mmspec/{target}`: one layer that reads the target's hidden states."
    return _head(target, host, "eagle3", summary, "eagle", "speculators")


HEADS = (
    _eagle("text-14m", "transformers"),
    _eagle("ssm-5m", "recurrent"),
    _head(
        "text-14m",
        "transformers",
        "mtp",
        "A layer for multi-token prediction, for `mmspec/text-14m`: built as the target's own layers are, and applied "
        "again for every further token of a draft.",
        "mtp",
        "deepseek",
    ),
    _head(
        "text-14m",
        "transformers",
        "medusa",
        "Four Medusa heads for `mmspec/text-14m`: one residual block each, in front of the target's output layer.",
        "medusa",
        "vllm",
    ),
)
SHIPPED = (*MODELS, *HEADS)
