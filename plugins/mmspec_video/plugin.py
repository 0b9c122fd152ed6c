"""What the video plugin offers. It imports no torch; the factories do."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from mmspec.registry import Component, hookimpl

if TYPE_CHECKING:
    import typer

TARGETS = {
    "mmspec_video.models.next_frame": "frames",
    "mmspec_video.models.oasis": "frames",
    "mmspec_video.models.token_world": "token-frames",
}
"""Modules of models to their targets."""

PIPELINE = "mmspec_video.pipeline:NextFramePipeline"
PAPER = "https://arxiv.org/abs/2506.01380"


@hookimpl
def mmspec_components() -> Iterator[Component]:
    """The targets, the drafters, then methods."""
    yield Component(
        name="frames",
        kind="target",
        factory="mmspec_video.targets.frames:FramesTarget",
        offers=frozenset({"discrete", "tree", "grow", "external"}),
        summary="Frames from actions by denoising, with the keys of earlier frames.",
        paper=PAPER,
        pipeline=PIPELINE,
        default_method="branch-prediction",
        default_k=1,
    )
    yield Component(
        name="token-frames",
        kind="target",
        factory="mmspec_video.targets.token_frames:TokenFramesTarget",
        offers=frozenset({"discrete", "tree", "window", "grow", "truncate", "frames"}),
        summary="Frames as codes, actions as forced units between them.",
        paper="https://arxiv.org/abs/2504.08388",
        pipeline=PIPELINE,
        default_method="frame-gs-sjd",
        default_k=32,
    )
    yield Component(
        name="action-repeat",
        kind="drafter",
        factory="mmspec_video.drafters.action_repeat:ActionRepeat",
        needs=frozenset({"discrete", "external"}),
        offers=frozenset({"chain"}),
        summary="The player goes on doing what was done last.",
        paper=PAPER,
    )
    yield Component(
        name="action-model",
        kind="drafter",
        factory="mmspec_video.drafters.action_model:ActionModel",
        needs=frozenset({"discrete", "external"}),
        offers=frozenset({"tree"}),
        summary="What the player did after the same actions before, several guesses at once.",
        paper=PAPER,
        options="mmspec_video.drafters.action_model:ActionModelOptions",
    )
    # Named apart from the image plugin's, so that a name alone is enough to say which.
    yield Component(
        name="frame-jacobi",
        kind="drafter",
        factory="mmspec_video.drafters.frame_jacobi:FrameJacobi",
        needs=frozenset({"redraw", "discrete"}),
        offers=frozenset({"chain", "window", "q"}),
        summary="The target's own last pass over a window, filled by the frame before.",
        paper="https://arxiv.org/abs/2410.01699",
        options="mmspec_video.drafters.frame_jacobi:FrameJacobiOptions",
    )
    yield from _lossy()
    yield Component(
        name="branch-prediction",
        kind="method",
        drafter="action-model",
        exactness="invariant",
        summary="Frames ahead of their time, for guessed actions; equality decides.",
        paper=PAPER,
    )
    yield Component(
        name="frame-gs-sjd",
        kind="method",
        drafter="frame-jacobi",
        needs=frozenset({"frames"}),
        exactness="invariant",
        summary="Jacobi windows with shared noise, filled by the frame before.",
        paper="https://arxiv.org/abs/2510.24211",
    )


def _lossy() -> Iterator[Component]:
    """Frames of another sampler, or of another model: rules, for actions are still compared, and their methods."""
    yield Component(
        name="nfd",
        kind="rule",
        factory="mmspec_video.rules.nfd:Nfd",
        needs=frozenset({"discrete", "external", "chain"}),
        exactness="lossy",
        summary="Frames of k + 1 actions denoised together; those of right guesses are kept.",
        paper=PAPER,
        options="mmspec_video.rules.nfd:NfdOptions",
    )
    yield Component(
        name="student",
        kind="rule",
        factory="mmspec_video.rules.student:Student",
        needs=frozenset({"discrete", "external"}),
        exactness="lossy",
        summary="A student's frames where the teacher, looking once, finds them close enough.",
        paper="https://arxiv.org/abs/2303.01469",
        options="mmspec_video.rules.student:StudentOptions",
    )
    yield Component(
        name="nfd",
        kind="method",
        drafter="action-repeat",
        rule="nfd",
        exactness="lossy",
        summary="Frames of k + 1 known or repeated actions denoised together, not exact.",
        paper=PAPER,
    )
    yield Component(
        name="student",
        kind="method",
        drafter="action-model",
        rule="student",
        exactness="lossy",
        summary="A student drafts frames, the teacher verifies by tolerance, not exact.",
        paper="https://arxiv.org/abs/2303.01469",
    )


@hookimpl
def mmspec_target_for(model: object) -> str | None:
    """By the class's home."""
    return TARGETS.get(type(model).__module__)


@hookimpl
def mmspec_commands(app: typer.Typer) -> None:
    """Add `mmspec train video`."""
    from mmspec_video import commands

    commands.add(app)


@hookimpl
def mmspec_shipped_models() -> Iterable[Any]:
    """The models of our cards."""
    from mmspec_video.cards import SHIPPED

    return SHIPPED


@hookimpl
def mmspec_parity_runners() -> Mapping[str, Any]:
    """Runners of our parity fixtures."""
    from mmspec_video.parity import ARCHITECTURES

    return ARCHITECTURES
