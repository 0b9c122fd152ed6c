"""The hooks of the text plugin. Imports no torch; the factories do."""

from mmspec.registry import answering, commanding, hookimpl

mmspec_components = answering("mmspec_text.specs:COMPONENTS")
mmspec_commands = commanding("mmspec_text.commands:add")


@hookimpl(trylast=True)
def mmspec_target_for(model: object) -> str | None:
    """`transformers` for a live model that generates and has a config; plugins that know it better are asked first."""
    fits = hasattr(getattr(model, "config", None), "model_type") and hasattr(model, "generate")
    return "transformers" if fits else None
