"""`mmspec.Pipeline.from_pretrained(name, method=…)`: a diffusers pipeline whose model decodes speculatively.

Which class it is, the plugin says whose target fits the model (`pipeline=` of the component). What all of them share
stands here: how to speculate, and the seeds of rows.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import torch
from diffusers import DiffusionPipeline
from torch import Generator

from mmspec.core.decoder import Decoder
from mmspec.core.policies import Fixed
from mmspec.faces.build import decoder_for
from mmspec.hosts.loading import load_model
from mmspec.registry import installed

Seed = int | Sequence[int] | None
Generators = Generator | Sequence[Generator] | None


class Pipeline(DiffusionPipeline):
    """What the plugins' pipelines have in common; a subclass registers a module `model` and adds `__call__`.

    Example:
        ```python
        pipe = mmspec.Pipeline.from_pretrained("mmspec/text-14m", method="prompt-lookup", k=8)
        print(pipe("def main(", temperature=0).texts[0])
        ```
    """

    _decoder: Decoder | None = None

    @classmethod
    def from_pretrained(cls, name: str | Path, **how: Any) -> "Pipeline":
        """Load a model, and the pipeline that its plugin has for it.

        Args:
            name: `mmspec/…` for a shipped model, a folder (of a model, or of `save_pretrained`), or a hub name.
            **how: As in `use`; and what the pipeline's own `from_pretrained` takes, such as `device=` and `dtype=`.

        Raises:
            ValueError: No such model, no pipeline for it, or an argument of `use` is wrong.
        """
        index = Path(name) / cls.config_name
        if index.is_file():
            made: Pipeline = _saved_as(json.loads(index.read_text())["_class_name"]).from_pretrained(name, **how)
            return made
        where = {key: how.pop(key) for key in ("device", "dtype") if key in how}
        model = load_model(str(name), **where)
        target = installed().target_for(model)
        if target is None:
            raise ValueError(f"no installed plugin has a target for {model.config.model_type!r}; see `mmspec plugins`")
        loaded: Pipeline = target.load_pipeline().from_pretrained(name, model=model, **how)
        return loaded

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
        self._decoder = decoder_for(self.model, method, **given)
        return self

    def decoder(self, k: int | None = None) -> Decoder:
        """The decoder in use (`use()` is called if nobody did); with another `k`, if given.

        A policy other than `fixed` keeps its own bound: under it a larger `k` changes nothing.

        Raises:
            ValueError: `k` is negative.
        """
        made = self._decoder if self._decoder is not None else self.use().decoder()
        if k is None or k == made.k:
            return made
        policy = None if isinstance(made.policy, Fixed) else made.policy
        return Decoder(made.target, made.drafter, made.rule, k=k, policy=policy, name=made.name, why=made.why)

    def to(self, *args: Any, **kwargs: Any) -> Self:
        """Move model and draft model."""
        super().to(*args, **kwargs)
        drafter = None if self._decoder is None else self._decoder.drafter
        drafting = getattr(getattr(drafter, "model", None), "model", None)
        if isinstance(drafting, torch.nn.Module):
            drafting.to(self.device)
        return self


def seeds_for(rows: int, seed: Seed, generator: Generators) -> int | list[int]:
    """Seeds of a call's rows. A row's output depends on its own seed only, so not on its batch.

    Args:
        rows: Rows of the batch.
        seed: One for all (row i then draws as the i-th of its call), or one a row.
        generator: One (each row draws its seed from it, in order), or one a row.

    Raises:
        ValueError: Both are given, or as many as rows were expected.
    """
    if seed is not None and generator is not None:
        raise ValueError("seed= and generator= both say what is drawn; give one of them")
    if isinstance(seed, int):
        return seed
    if seed is not None:
        return _one_a_row(list(seed), rows, "seeds")
    if generator is None or isinstance(generator, Generator):
        return [_drawn(generator) for _ in range(rows)]
    return [_drawn(g) for g in _one_a_row(list(generator), rows, "generators")]


def _one_a_row(given: list[Any], rows: int, what: str) -> list[Any]:
    if len(given) != rows:
        raise ValueError(f"{len(given)} {what} for {rows} prompts; give one, or one a prompt")
    return given


def _drawn(generator: Generator | None) -> int:
    """A seed from a generator, or from torch's own."""
    device = "cpu" if generator is None else generator.device
    return int(torch.randint(2**62, (), generator=generator, device=device))


def _saved_as(name: str) -> Any:
    """The class of a folder that `save_pretrained` wrote."""
    there = [c for c in installed().components("target") if c.pipeline]
    for component in there:
        if component.pipeline.rpartition(":")[2] == name:
            return component.load_pipeline()
    known = ", ".join(c.pipeline.rpartition(":")[2] for c in there) or "none"
    raise ValueError(f"the folder holds a {name}, which no installed plugin has; there is {known}")
