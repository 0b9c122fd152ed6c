"""The hooks of the zoo. Imports no torch; the factories do."""

from mmspec.registry import answering, commanding, hookimpl

mmspec_components = answering("mmspec_zoo.specs:COMPONENTS")
mmspec_commands = commanding("mmspec_zoo.commands:add")


@hookimpl
def mmspec_target_for(model: object) -> str | None:
    """`xlnet` for a live XLNet: its own `generate` is no decoder's, and it can fill blanks."""
    return "xlnet" if type(model).__name__ == "XLNetLMHeadModel" else None
