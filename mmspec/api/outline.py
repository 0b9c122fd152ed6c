"""The outline of a model, or of the target model of a pipeline, from its configuration files alone."""

from mmspec.api.saved import pipeline_class_in
from mmspec.hosts.loading import unloaded
from mmspec.hosts.outline import Outline, outline, outlined, place_of
from mmspec.hosts.stored_pipeline import index_of
from mmspec.hosts.weight_files import INDEX, refuse_config


def outline_of(name: str) -> Outline:
    """The outline of a model, or of a pipeline's target model; no weights are loaded.

    Args:
        name: `mmspec/…` for a shipped model, a folder, or a hub name of a model.

    Raises:
        ValueError: There is no such model, or no installed plugin has such a pipeline.
    """
    folder = place_of(name)
    if not (folder / INDEX).is_file():
        return outline(name)
    pipeline = pipeline_class_in(folder)
    part = pipeline.target_module
    entry = index_of(folder, pipeline).parts[part]
    refuse_config(folder / part, {})
    return outlined(lambda: unloaded(entry, str(folder / part)), folder)
