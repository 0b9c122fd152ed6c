"""The hooks of the image plugin. Imports no torch; the factories do."""

from mmspec.registry import answering, commanding, hookimpl

TARGETS = {f"mmspec_image.models.{name}": name for name in ("llamagen", "janus", "chameleon")}
TARGETS["mmspec_image.models.grid_language"] = "grid-language"  # modules of our models to their targets
STOCK = {"GlmImageForConditionalGeneration": "glm-image", "Emu3ForConditionalGeneration": "emu3"}
"""Classes of transformers to their targets."""

mmspec_components = answering("mmspec_image.specs:COMPONENTS")
mmspec_parity_runners = answering("mmspec_image.layouts:ARCHITECTURES")
mmspec_layouts = answering("mmspec_image.layouts:LAYOUTS")
mmspec_commands = commanding("mmspec_image.commands:add")


@hookimpl
def mmspec_advice(files: str) -> str | None:
    """The command that converts published files of a picture's model, or why none does."""
    from mmspec_image.official.published import advice

    return advice(files)


@hookimpl
def mmspec_target_for(model: object) -> str | None:
    """By the class's home: our LlamaGen, and Janus and Chameleon taken for pictures; of transformers' own classes those
    whose `generate` can write pictures. Others are the text plugin's.
    """
    home, _, _ = type(model).__module__.partition(".")
    return STOCK.get(type(model).__name__) if home == "transformers" else TARGETS.get(type(model).__module__)
