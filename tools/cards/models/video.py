"""The texts of the shipped world models' cards."""

from collections.abc import Mapping
from typing import Any

from mmspec.report.views import View
from tools.cards.cards import Shipped

FACTS = {
    "held_out_nats_per_code": ("cross-entropy of a code", "{:.3f} nats"),
    "held_out_velocity_error": ("squared error of the velocity", "{:.4f}"),
    "held_out_student_gap": ("the student's distance to itself, one step earlier", "{:.4f}"),
    "student_parameters": ("parameters of the student, in low-rank differences", "{:,}"),
    "reconstruction_psnr_db": ("PSNR of the autoencoder", "{:.2f} dB"),
    "codes_used": ("codes of the training episodes", "{:,}"),
}
"""Names of facts in `training.json`: label and format."""


def held_out(facts: Mapping[str, Any]) -> View:
    """The facts of held-out episodes, as far as `training.json` has them."""
    rows = [(what, form.format(facts[name])) for name, (what, form) in FACTS.items() if name in facts]
    recipe = facts["recipe"]
    note = (
        f"Frames of {recipe['width']} × {recipe['height']} pixels, {recipe['episodes']} episodes of "
        f"{recipe['length']}. Held out: {facts['held_out']}."
    )
    return View("Held-out episodes", ("of held-out episodes", "measured"), rows, note)


DATA = (
    "Frames that `python -m tools.train video` draws itself: four courts of this project's own, rendered by Panda3D "
    "(modified BSD licence), through which a program walks from court to court and sometimes does anything at all. "
    "Places lie on a lattice: held-out episodes are other walks past the same views.",
)
COMMAND = "python -m tools.train video --distill"

SHIPPED = (
    Shipped(
        name="four-courts",
        summary="A world that can be played: the next frame of 64 × 48 pixels after one of four actions, by denoising "
        "in a few steps behind the frames before it. It has four courts, each with walls of its own colour and its own "
        "landmark, and who walks around comes back to the first. Beside it lie a student of fewer steps, and recorded "
        "clips with what the simulator answered, for the benchmark.",
        target="frames",
        method="branch-prediction",
        k=1,
        drafter=None,
        data=DATA,
        command=COMMAND,
        tags=("world-model", "video", "speculative-decoding", "diffusion"),
        measured=held_out,
        key_layout="diffusers",
    ),
    Shipped(
        name="four-courts-tokens",
        summary="The same world in codes: a causal transformer over frames of a VQ's codes and the actions between "
        "them, in the manner of MineWorld (arXiv 2504.08388). A code stands for 8 × 8 pixels. Its "
        "speed stands in the card of `four-courts`.",
        target="token-frames",
        method="frame-gs-sjd",
        k=32,
        drafter=None,
        data=DATA,
        command=COMMAND,
        tags=("world-model", "video", "speculative-decoding", "autoregressive"),
        measured=held_out,
        key_layout="diffusers",
    ),
)
