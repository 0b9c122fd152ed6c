"""The card of the shipped continuous model."""

from collections.abc import Mapping
from typing import Any

from mmspec.report.views import View
from tools.cards.cards import Shipped


def held_out(facts: Mapping[str, Any]) -> View:
    """The card's table on held-out pictures: losses, reconstruction, and what the last step's noise costs."""
    recipe, psnr, loss = facts["recipe"], facts["reconstruction_psnr_db"], facts["held_out_loss"]
    rows = [(f"PSNR of the autoencoder, {of}", f"{value:.2f} dB") for of, value in psnr.items()]
    rows += [(f"loss of the denoising head, {of}", f"{value:.4f}") for of, value in loss.items()]
    lost = psnr["of its tokens"] - psnr["with noise of sigma_0 on them"]
    note = (
        f"Tokens have {recipe['token_dim']} numbers of unit variance. The head takes {recipe['denoising_steps']} "
        f"steps; its last one keeps noise of sigma_0 = {recipe['sigma_0']:g}, without which nothing could be coupled. "
        f"On the tokens of pictures that noise costs {lost:.2f} dB; what it costs in pictures that are drawn, the "
        f"benchmark says ('plain, noiseless last step'). Held out: {facts['held_out']}."
    )
    return View("Held-out pictures", ("of held-out pictures", "measured"), rows, note)


SHIPPED = (
    Shipped(
        name="emoji-continuous",
        summary="Draws emoji of 64 × 64 pixels after captions: a causal transformer over 8 × 8 continuous tokens, a "
        "denoising head of few steps, and a KL autoencoder whose decoder sees through their noise.",
        target="continuous-ar",
        method="reflection",
        k=16,
        drafter=None,
        data=(
            "Noto Emoji (Google, github.com/googlefonts/noto-emoji; images Apache 2.0) on white, 64 × 64 pixels.",
            "Captions made from the names of Unicode characters.",
        ),
        command="python -m tools.train continuous --data emoji",
        tags=("text-to-image", "speculative-decoding", "continuous-tokens"),
        measured=held_out,
        key_layout="diffusers",
    ),
)
