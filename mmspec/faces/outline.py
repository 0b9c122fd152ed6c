"""What stands for a model, or for the target of a whole pipeline, where only configs are to be read."""

import sys

from mmspec.faces.pipeline import saved_as
from mmspec.hosts.loading import INDEX, parts_of
from mmspec.hosts.outline import Outline, outline, outlined, place_of


def outline_of(name: str) -> Outline:
    """The outline of a model, or of the one of a pipeline's models that speculation is for.

    Args:
        name: `mmspec/…` for what we ship, a folder, or a hub name of a model.

    Raises:
        ValueError: There is no such model, or no installed plugin has such a pipeline.
    """
    saved = place_of(name)
    if not (saved / INDEX).is_file():
        return outline(name)
    part = saved_as(saved).target_module  # which imports the plugin that knows the part's class
    library, kind = parts_of(saved)[part]
    known = getattr(sys.modules.get(library), kind, None)
    if known is None:
        raise ValueError(f"the {part} of {name} is a {library}.{kind}, which no installed plugin has")
    config = known.load_config(saved / part)
    return outlined(lambda: known.from_config(config), saved)
