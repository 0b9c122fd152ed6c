"""The texts of the shipped world models' cards."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mmspec.report.cards import Shipped, write
from mmspec.report.views import View

FACTS = {
    "held_out_nats_per_code": ("cross-entropy of a code", "{:.3f} nats"),
    "held_out_velocity_error": ("squared error of the velocity", "{:.4f}"),
    "held_out_student_gap": ("the student's distance to itself, one step earlier", "{:.4f}"),
    "student_parameters": ("parameters of the student, in low-rank differences", "{:,}"),
    "reconstruction_psnr_db": ("PSNR of the VQ", "{:.2f} dB"),
    "codes_used": ("codes that they use", "{:,}"),
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
    "Frames that `mmspec train video` renders itself: the scenario my_way_home of ViZDoom (arXiv 1605.02097) with "
    "graphics of Freedoom (BSD-3-Clause), played by somebody who mostly goes on with the last action.",
)
COMMAND = "mmspec train video --distill"

SHIPPED = (
    Shipped(
        name="my-way-home",
        summary="A world that can be played: the next frame of a first-person maze of 64 × 48 pixels after one of four "
        "actions, by denoising in a few steps behind the frames before it. Beside it lie a student of fewer steps, and "
        "recorded clips with what the simulator answered, for the benchmark.",
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
        name="my-way-home-tokens",
        summary="The same world in codes: a causal transformer over frames of a VQ's codes and the actions between "
        "them, in the manner of MineWorld (arXiv 2504.08388). It is coarse: 64 codes, which are clusters of patches of "
        "8 × 8 pixels. Walls move as the actions say; what comes into view is a maze of its own, since a window of 8 "
        "frames remembers no other. Its speed stands in the card of `my-way-home`.",
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


def write_all(assets: Path, cards: Path) -> None:
    """Render the cards of the models in `assets`."""
    cards.mkdir(parents=True, exist_ok=True)
    for shipped in SHIPPED:
        write(shipped, assets, cards)
