"""What the cards of the shipped text models say, and that of a model that `mmspec fetch` brings."""

from collections.abc import Mapping
from typing import Any

from mmspec.report.views import View
from tools.cards.cards import Shipped
from tools.cards.models.sources import SOURCES, held_out

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


def of_labels(facts: Mapping[str, Any]) -> View:
    """A table of what a judge does with tokens of questions that it did not learn from."""
    rows = [(name, f"{share:.0%}") for name, share in facts["held_out"].items()]
    right, wrong = (facts["tokens"][kind] for kind in ("right", "wrong"))
    learnt = f"learnt from {right:,} right tokens and {wrong:,} wrong ones"
    note = f"At δ = 0.5, of tokens that text-1m would write in answers to held-out questions; {learnt}."
    return View("What it finds right", ("tokens", "share"), rows, note)


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


def _eagle(target: str, host: str) -> Shipped:
    """The EAGLE-3 head of a shipped target, which the component `host` decodes with."""
    other = "" if target == "text-14m" else f" --target mmspec/{target}"
    return Shipped(
        name=f"{target}-eagle3",
        summary=f"An EAGLE-3 head for `mmspec/{target}`: one layer that reads the target's hidden states.",
        target=host,
        method="eagle",
        drafter=None,
        data=(*SOURCES, f"What `mmspec/{target}` writes behind pieces of these."),
        command=f"python -m tools.train text-eagle3{other} --prose tinyshakespeare.txt",
        tags=("text-generation", "speculative-decoding", "eagle3", "draft-model"),
        measured=along_drafts,
        key_layout="speculators",
    )


HEADS = (
    _eagle("text-14m", "transformers"),
    _eagle("ssm-5m", "recurrent"),
    Shipped(
        name="text-14m-ppd",
        summary="Three prompt tokens for `mmspec/text-14m`, which score the next draft inside of its own passes.",
        target="transformers",
        method="ppd",
        drafter=None,
        data=(*SOURCES, "What `mmspec/text-14m` writes behind pieces of these."),
        command="python -m tools.train text-ppd --prose tinyshakespeare.txt",
        tags=("text-generation", "speculative-decoding", "draft-model"),
        measured=along_drafts,
    ),
    Shipped(
        name="text-14m-judge",
        summary="A judge for `mmspec/text-14m`, lossy: it finds drafted tokens right that the model would not write.",
        target="transformers",
        method="judge",
        drafter="mmspec/text-1m",
        data=(
            SOURCES[0],
            "Ten lines are a question, and the last statement that `mmspec/text-14m` begins behind them the answer.",
        ),
        command="python -m tools.train text-judge --prose tinyshakespeare.txt",
        tags=("text-generation", "speculative-decoding"),
        measured=of_labels,
    ),
    Shipped(
        name="smollm2-eagle3",
        summary="An EAGLE-3 head for `smollm2` (SmolLM2-135M-Instruct): one layer that reads the target's hidden "
        "states and drafts over the 6,144 tokens that the target writes most.",
        target="transformers",
        method="eagle",
        drafter=None,
        data=(
            "5,860 questions that the target wrote, behind the beginning of a user's turn, and its answers, at "
            "temperature 0.8: 2.04 million tokens, each 1.4 times. No prompt of a benchmark is among them.",
            "A first run, on a GPU: `--draft-vocab 6144 --context 512 --batch 16 --steps 208 --depth 4`.",
        ),
        command="mmspec train drafter --target smollm2 --kind eagle3 --dtype bfloat16 --head FIRST --data OTHERS",
        tags=("text-generation", "speculative-decoding", "eagle3", "draft-model"),
        measured=along_drafts,
        size="It learnt on two CPU cores; more texts and a GPU would make a better one.",
        key_layout="speculators",
    ),
)
FETCHED = (
    Shipped(
        name="smollm2",
        summary="SmolLM2-135M-Instruct of Hugging Face, which answers questions: `mmspec fetch smollm2` brings it.",
        target="transformers",
        method="auto",
        drafter=None,
        tags=("text-generation", "speculative-decoding", "llama"),
    ),
)
SHIPPED = (*MODELS, *HEADS, *FETCHED)
