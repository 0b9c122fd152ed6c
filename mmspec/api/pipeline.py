"""`mmspec.Pipeline.from_pretrained(name, method=…)`: a diffusers pipeline whose model decodes speculatively.

Which class it is, the folder says that `save_pretrained` wrote, or the plugin whose target fits the model (`pipeline=`
of the component). What all of them share stands here: loading, how to speculate, and the seeds of rows.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self

import diffusers
import torch
from diffusers import DiffusionPipeline
from huggingface_hub import hf_hub_download, snapshot_download
from torch import Generator

from mmspec.api.build import decoder_for
from mmspec.api.saved import draft_model_of, keep, restored
from mmspec.core.decoder import Decoder
from mmspec.core.drafters.none import NoDraft
from mmspec.core.policies import Fixed
from mmspec.hosts.devices import refuse_device
from mmspec.hosts.dtypes import dtype_of
from mmspec.hosts.loading import load_model, locate_pipeline
from mmspec.hosts.pipeline_index import INDEX, class_name_in, index_of
from mmspec.hosts.pipeline_parts import load_parts
from mmspec.hosts.remote_code import refusing_code
from mmspec.registry import installed
from mmspec.registry.numbers import integers, whole

KEPT = ["*.json", "*.safetensors", "*.model", "*.txt", "*.jinja"]
"""Files of a pipeline on the hub that are fetched: configurations, weights, tokenizers."""
Seed = int | Sequence[int] | None
Generators = Generator | Sequence[Generator] | None


LOADING = ("device", "dtype", "torch_dtype")
"""What `from_pretrained` takes beside modules and what `use` takes."""


class Pipeline(DiffusionPipeline):
    """What the plugins' pipelines have in common; a subclass registers its modules and adds `__call__`.

    Attributes:
        target_module: Name of the module whose distribution the output follows.

    Example:
        ```python
        pipe = mmspec.Pipeline.from_pretrained("mmspec/text-14m", method="prompt-lookup", k=8)
        print(pipe("def main(", temperature=0).texts[0])
        ```
    """

    target_module = "model"
    _decoder: Decoder | None = None
    _bound_on: torch.device | None = None
    _told: Mapping[str, Any] = MappingProxyType({})

    def __init_subclass__(cls, **how: Any) -> None:
        """Let `diffusers.DiffusionPipeline.from_pretrained` find the class by the name that a saved folder has."""
        super().__init_subclass__(**how)
        if not hasattr(diffusers, cls.__name__):
            setattr(diffusers, cls.__name__, cls)

    @classmethod
    def from_pretrained(cls, name: str | Path, **how: Any) -> Any:
        """Load a pipeline; called on `mmspec.Pipeline`, the one that its plugin has for it.

        Args:
            name: `mmspec/…` for a shipped model, a folder (of a model, or of `save_pretrained`), or a hub name.
            **how: `device=` (default `cpu`) and `dtype=` or `torch_dtype=`, by name or torch's own (default float32, in
                which equality with plain decoding is promised); modules of the pipeline, instead of those at `name`;
                and as in `use`, where a folder of `save_pretrained` has its own defaults.

        Raises:
            ValueError: No such model, no pipeline for it, weights that are damaged or do not fit, or an argument of
                `use` is wrong.
        """
        saved = locate_pipeline(str(name))
        if cls is not Pipeline:
            return cls._load(saved, str(name), **how)
        if saved is not None:
            return saved_as(saved).from_pretrained(name, **how)
        numbers = dtype_of(how.pop("dtype", None), how.pop("torch_dtype", None))
        model = load_model(str(name), how.pop("device", "cpu"), numbers)
        target = installed().target_for(model)
        if target is None:
            raise ValueError(f"no installed plugin has a target for {model.config.model_type!r}; see `mmspec plugins`")
        return target.load_pipeline().from_pretrained(name, model=model, **how)

    @classmethod
    def _load(
        cls, saved: Path | None, name: str, device: str = "cpu", dtype: Any = None, torch_dtype: Any = None, **how: Any
    ) -> Self:
        """A whole pipeline; `saved` is its folder, None where the hub has it.

        diffusers never reads the folder: it would import what an index names, and `None.py` beside it.
        """
        refuse_device(device)
        numbers = dtype_of(dtype, torch_dtype)
        modules = {part: how.pop(part) for part in cls._get_signature_types() if part in how}
        folder = saved if saved is not None else _fetched(name, cls)
        index = index_of(folder, cls, given=modules)
        settings = {key: value for key, value in index.settings.items() if key not in modules}
        pipe = cls(**settings, **modules, **load_parts(index, numbers, without=modules))
        pipe.register_to_config(_name_or_path=name)
        return pipe.to(device).use(**restored(folder, how))

    @classmethod
    def places_of(cls, name: str, *parts: str) -> list[str]:
        """Where parts are, for a pipeline that also loads what is no pipeline yet.

        Args:
            name: As in `from_pretrained`.
            *parts: Names of parts.

        Returns:
            The parts' folders in what `save_pretrained` wrote; else, for every part, `name`.

        Raises:
            ValueError: The folder is of another pipeline.
        """
        saved = locate_pipeline(name)
        if saved is None:
            return [name] * len(parts)
        index_of(saved, cls)
        return [str(saved / part) for part in parts]

    def use(
        self,
        method: str = "auto",
        *,
        drafter: Any = None,
        rule: Any = None,
        k: int | None = None,
        policy: Any = None,
        **options: Any,
    ) -> Self:
        """Choose how to speculate, now or again; arguments as in `mmspec.enable`.

        Raises:
            ValueError: A name, an option or the combination is wrong.
        """
        given = {"drafter": drafter, "rule": rule, "k": k, "policy": policy, "options": options}
        self._decoder = decoder_for(getattr(self, self.target_module), method, beside=LOADING, **given)
        self._told = {"method": method, **given}
        self._bound_on = self._execution_device
        return self

    def save_pretrained(self, save_directory: str | Path, **how: Any) -> None:
        """Write the pipeline as diffusers does, and how it speculates; `mmspec.Pipeline.from_pretrained` reads it.

        `diffusers.DiffusionPipeline.from_pretrained` reads it too, in a process that has imported the pipeline's class.

        Args:
            save_directory: The folder.
            **how: As in diffusers.
        """
        super().save_pretrained(save_directory, **how)
        keep(Path(save_directory), self._told, None if self._decoder is None else self._decoder.drafter)

    def decoder(self, k: int | None = None) -> Decoder:
        """The decoder in use (`use()` is called if nobody did); with another `k`, if given.

        A policy other than `fixed` keeps its own bound: under it a larger `k` changes nothing.

        Raises:
            ValueError: `k` is no integer, or negative.
        """
        made = self._decoder if self._decoder is not None else self.use(**self._as_saved()).decoder()
        moved = self._bound_on != self._execution_device  # drafter and rule may hold what they took from the target
        if moved:
            made = self._decoder = _again(made, made.k)
            self._bound_on = self._execution_device
        return made if k is None or whole("k", k) == made.k else _again(made, k)

    def _as_saved(self) -> dict[str, Any]:
        """How a pipeline that diffusers loaded was saved to speculate."""
        name = self.config.get("_name_or_path")
        return restored(Path(name), {}) if name else {}

    def to(self, *args: Any, **kwargs: Any) -> Self:
        """Move model and draft model."""
        super().to(*args, **kwargs)
        drafting = None if self._decoder is None else draft_model_of(self._decoder.drafter)
        if drafting is not None:
            drafting.to(self.device)
        return self


def _fetched(name: str, pipeline: type) -> Path:
    """The folder of a pipeline that the hub has: its index first, and no code and no pickle of it at all."""
    with refusing_code(f"the pipeline {name!r}"):
        index = hf_hub_download(name, INDEX)
    index_of(Path(index).parent, pipeline)
    with refusing_code(f"the pipeline {name!r}"):
        return Path(snapshot_download(name, allow_patterns=KEPT))


def seeds_for(rows: int, seed: Seed, generator: Generators, each: str = "prompt") -> int | list[int]:
    """Seeds of a call's rows. A row's output depends on its own seed only, so not on its batch.

    Args:
        rows: Rows of the batch.
        seed: One for all (row i then draws as the i-th of its call), or one a row.
        generator: One (each row draws its seed from it, in order), or one a row.
        each: What a row is, for messages.

    Raises:
        ValueError: Both are given, or as many as rows were expected.
    """
    if seed is not None and generator is not None:
        raise ValueError("seed= and generator= both say what is drawn; give one of them")
    if isinstance(seed, Sequence) and not isinstance(seed, str):
        seeds = _one_a_row(list(seed), rows, "seeds", each)
        integers(**{f"seed[{i}]": value for i, value in enumerate(seeds)})
        return seeds
    integers(seed=seed)
    if seed is not None:
        return int(seed)
    if generator is None or isinstance(generator, Generator):
        return [_drawn(generator) for _ in range(rows)]
    if not isinstance(generator, Sequence) or not all(isinstance(g, Generator) for g in generator):
        raise ValueError(f"generator is a torch.Generator, or one a {each}, not {generator!r}")
    return [_drawn(g) for g in _one_a_row(list(generator), rows, "generators", each)]


def _again(made: Decoder, k: int) -> Decoder:
    """The same decoder, drafter and rule bound anew, with another `k`."""
    policy = None if isinstance(made.policy, Fixed) else made.policy
    drafter = None if isinstance(made.drafter, NoDraft) else made.drafter
    return Decoder(made.target, drafter, made.rule, k=k, policy=policy, name=made.name, why=made.why)


def _one_a_row(given: list[Any], rows: int, what: str, each: str) -> list[Any]:
    if len(given) != rows:
        raise ValueError(f"{len(given)} {what} for {rows} {each}s; give one, or one a {each}")
    return given


def _drawn(generator: Generator | None) -> int:
    """A seed from a generator, or from torch's own."""
    device = "cpu" if generator is None else generator.device
    return int(torch.randint(2**62, (), generator=generator, device=device))


def saved_as(folder: Path) -> Any:
    """The class of a folder that `save_pretrained` wrote.

    Raises:
        ValueError: The folder does not say, or no installed plugin has that class.
    """
    name = class_name_in(folder)
    there = [c for c in installed().components("target") if c.pipeline]
    for component in there:
        if component.pipeline.rpartition(":")[2] == name:
            return component.load_pipeline()
    known = ", ".join(sorted({c.pipeline.rpartition(":")[2] for c in there})) or "none"
    raise ValueError(f"the folder holds a {name}, which no installed plugin has; there is {known}")
