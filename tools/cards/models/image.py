"""The cards of the shipped image model and its head."""

from collections.abc import Mapping
from typing import Any

from mmspec.report.views import View
from tools.cards.cards import Shipped
from tools.cards.models.text import along_drafts


def held_out(facts: Mapping[str, Any]) -> View:
    """The card's table on held-out pictures: cross-entropy of codes, and reconstruction from codes."""
    nats = facts["held_out_nats_per_code"].items()
    rows = [(f"nats per code, {name}", f"{value:.3f}") for name, value in nats]
    rows.append(("reconstruction, PSNR in dB", f"{facts['reconstruction_psnr_db']:.1f}"))
    rows.append(("codes in use", str(facts["codes_used"])))
    return View("Held-out pictures", ("what", "value"), rows, f"Held out: {facts['held_out']}.")


MODELS = (
    Shipped(
        name="emoji",
        summary="A LlamaGen-architecture model that draws emoji from captions: 64 × 64 pixels, 16 × 16 codes of 512, a "
        "caption encoder of its own, classifier-free guidance. Beside the weights: a small network and the training "
        "pictures' statistics in its features, for the Fréchet distance.",
        target="llamagen",
        method="gs-sjd",
        k=16,
        drafter=None,
        data=(
            "3,545 pictures of Noto Emoji (Google, github.com/googlefonts/noto-emoji; Apache License 2.0).",
            "Captions made from the names of Unicode characters.",
        ),
        command="python -m tools.train image --data FOLDER",
        tags=("text-to-image", "speculative-decoding", "jacobi-decoding", "llamagen"),
        measured=held_out,
        key_layout="llamagen",
    ),
)
HEADS = (
    Shipped(
        name="emoji-eagle",
        summary="LANTERN's drafter (arXiv 2410.03355) for `mmspec/emoji`: one layer of EAGLE-1 on the picture's grid.",
        target="llamagen",
        method="eagle",
        drafter=None,
        data=MODELS[0].data,
        command="python -m tools.train image-eagle --data FOLDER",
        tags=("text-to-image", "speculative-decoding", "eagle", "draft-model"),
        measured=along_drafts,
        key_layout="lantern",
    ),
)
SHIPPED = (*MODELS, *HEADS)
