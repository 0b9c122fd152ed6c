"""What stands for a model, or for the target of a whole pipeline, where only configs are to be read."""

from mmspec.api.pipeline import saved_as
from mmspec.hosts.loading import unloaded
from mmspec.hosts.outline import Outline, outline, outlined, place_of
from mmspec.hosts.pipeline_index import INDEX, index_of
from mmspec.hosts.weight_files import refuse_config


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
    pipeline = saved_as(saved)
    part = pipeline.target_module
    known = index_of(saved, pipeline).parts[part]
    refuse_config(saved / part, {})
    return outlined(lambda: unloaded(known, str(saved / part)), saved)
