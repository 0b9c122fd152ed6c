"""The hooks of the continuous plugin. Imports no torch; the factories do."""

from mmspec.registry import answering, commanding, hookimpl

TARGETS = {"mmspec_continuous.models.continuous_ar": "continuous-ar"}  # modules of models to their targets

mmspec_components = answering("mmspec_continuous.specs:COMPONENTS")
mmspec_layouts = answering("mmspec_continuous.layouts:LAYOUTS")
mmspec_pipelines = answering("mmspec_continuous.specs:PIPELINES")
mmspec_commands = commanding("mmspec_continuous.commands:add")


@hookimpl
def mmspec_target_for(model: object) -> str | None:
    return TARGETS.get(type(model).__module__)
