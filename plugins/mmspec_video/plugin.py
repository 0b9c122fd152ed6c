"""The hooks of the video plugin. Imports no torch; the factories do."""

from mmspec.registry import answering, commanding, hookimpl

TARGETS = {
    "mmspec_video.models.next_frame": "frames",
    "mmspec_video.models.oasis": "frames",
    "mmspec_video.models.token_world": "token-frames",
}
"""Modules of models to their targets."""

mmspec_components = answering("mmspec_video.specs:COMPONENTS")
mmspec_parity_runners = answering("mmspec_video.layouts:ARCHITECTURES")
mmspec_layouts = answering("mmspec_video.layouts:LAYOUTS")
mmspec_commands = commanding("mmspec_video.commands:add")


@hookimpl
def mmspec_target_for(model: object) -> str | None:
    return TARGETS.get(type(model).__module__)
