"""Pipelines over one model of transformers: loaded from its own folder, or from that of `save_pretrained`."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from mmspec.api.pipeline import Pipeline
from mmspec.api.saved import restored
from mmspec.hosts.devices import refuse_device
from mmspec.hosts.dtypes import dtype_of
from mmspec.hosts.loading import load_as, load_processor, locate_pipeline
from mmspec.hosts.stored_pipeline import index_of

Some = TypeVar("Some", bound=Pipeline)


def model_and_processor(pipeline: type[Pipeline], kind: Any, name: str, device: str, *dtypes: Any) -> dict[str, Any]:
    """The parts `model` and `processor`.

    Args:
        pipeline: The class of the pipeline.
        kind: The class of the model.
        name: A folder, or a hub name.
        device: Where the pipeline will go.
        *dtypes: `dtype=` and `torch_dtype=` of `from_pretrained`.

    Raises:
        ValueError: There is no such model or device, or weights are missing.
    """
    refuse_device(device)
    model_at, processor_at = pipeline.places_of(name, "model", "processor")
    return {"model": load_as(kind, model_at, dtype_of(*dtypes)), "processor": load_processor(processor_at)}


def settings_of(pipeline: type[Pipeline], name: str) -> Mapping[str, Any]:
    """The settings in a folder of `save_pretrained`; none of a folder that holds a model alone."""
    saved = locate_pipeline(name)
    return {} if saved is None else index_of(saved, pipeline).settings


def placed(pipe: Some, name: str | Path, device: str, how: dict[str, Any]) -> Some:
    """The pipeline on its device, with its method; `how` as in `use`, what it lacks as it was saved."""
    pipe.register_to_config(_name_or_path=str(name))
    return pipe.to(device).use(**restored(Path(name), how))
