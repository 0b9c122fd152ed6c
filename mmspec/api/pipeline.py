"""`mmspec.Pipeline.from_pretrained(name, method=…)`: a diffusers pipeline whose model decodes speculatively.

The class of the pipeline is named in the folder that `save_pretrained` wrote, or by the plugin whose target declares
the stored model's architecture or fits the loaded model. All pipelines share what is here: loading and saving, the
choice of a method, and the seeds of rows.
"""

import copy
import functools
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self, TypeVar

import diffusers
import torch
from diffusers import DiffusionPipeline
from torch import Generator

from mmspec.api.build import decoder_for, rebound
from mmspec.api.refusals import naming_arguments
from mmspec.api.saved import draft_model_of, save_method
from mmspec.api.stored import Stored, advice_on, advising, pipeline_of, refuse_names
from mmspec.core.compile.captured import Compile
from mmspec.core.decoder import Decoder
from mmspec.core.promise import Shape
from mmspec.core.sharing import SharingDecoder
from mmspec.hosts.devices import dtype_of, refuse_device
from mmspec.hosts.loading import load_model
from mmspec.registry import installed
from mmspec.registry.numbers import integers, whole

Made = TypeVar("Made")
Seed = int | Sequence[int] | None
Generators = Generator | Sequence[Generator] | None

LOADING = ("device", "dtype", "torch_dtype")  # arguments of `from_pretrained` beside modules and the arguments of `use`


class Pipeline(DiffusionPipeline):
    """The base of the plugins' pipelines; a subclass registers its modules and adds `__call__`.

    Attributes:
        target_module: Name of the module that is the target model.
        makes: What a row of a call's output is: `text`, `image`, or `video`; "" where it is none of these.

    Example:
        ```python
        pipe = mmspec.Pipeline.from_pretrained("mmspec/text-14m", method="prompt-lookup", k=8)
        print(pipe("def main(", temperature=0).texts[0])
        ```
    """

    target_module = "model"
    makes = ""
    _decoder: Decoder | None = None
    _bound_device: torch.device | None = None
    _bound_parts: Mapping[str, Any] = MappingProxyType({})
    _use_arguments: Mapping[str, Any] = MappingProxyType({})

    def __init_subclass__(cls, **how: Any) -> None:
        """Let `diffusers.DiffusionPipeline.from_pretrained` find the class by the name in a saved folder.

        A call says of an argument that it does not have which one is nearest.
        """
        super().__init_subclass__(**how)
        if "__call__" in vars(cls):
            cls.__call__ = naming_arguments(_of_one_call(vars(cls)["__call__"]))
        if not hasattr(diffusers, cls.__name__):
            setattr(diffusers, cls.__name__, cls)

    @classmethod
    def from_pretrained(cls, name: str | Path, **how: Any) -> Any:
        """Load a pipeline; called on `mmspec.Pipeline` itself, a pipeline of the class that fits the model.

        Args:
            name: `mmspec/…` for a shipped model, a folder (of a model, or of `save_pretrained`), or a hub name.
            **how: `device=` (default `cpu`); `dtype=` or `torch_dtype=`, a name or torch's own (default float32, in
                which equality with plain decoding is promised); modules of the pipeline, instead of those at `name`;
                `trust_remote_code=False`, which is always so; and arguments of `use`, of which a folder of
                `save_pretrained` has its own defaults.

        Raises:
            ValueError: There is no such model or no pipeline for it, weights are damaged or do not fit, or an argument
                of `use` is wrong.
        """
        if how.pop("trust_remote_code", False):
            raise ValueError("mmspec runs no code that comes with a model: leave out trust_remote_code=True")
        name = str(name)
        with advising(name):
            stored = Stored.named(name, None if cls is Pipeline else cls)
            kind = pipeline_of(stored, name) if cls is Pipeline else cls
            if kind is not None:
                return kind._load(stored, name, **how)
        if advice := advice_on(name):  # transformers has a language model for it, which would write no pictures
            raise ValueError(advice)
        numbers = dtype_of(how.pop("dtype", None), how.pop("torch_dtype", None))
        how["model"] = model = load_model(name, how.pop("device", "cpu"), numbers)
        target = installed().target_for(model)
        if target is None:
            known = "see `mmspec plugins`"
            raise ValueError(f"no installed plugin has a target for {model.config.model_type!r}; {known}")
        return target.load_pipeline()._load(stored, name, **how)

    @classmethod
    def _load(
        cls,
        stored: Stored | None,
        name: str,
        *,
        device: str = "cpu",
        dtype: Any = None,
        torch_dtype: Any = None,
        **how: Any,
    ) -> Self:
        refuse_device(device)
        given = {part: how.pop(part) for part in cls._get_signature_types() if part in how}
        stored, parts = cls._parts(stored, name, dtype_of(dtype, torch_dtype), given)
        refuse_names(cls, parts)
        pipe = cls(**parts)
        pipe.register_to_config(_name_or_path=name)
        return pipe.to(device).use(**(how if stored is None else stored.method(how)))

    @classmethod
    def _parts(
        cls, stored: Stored | None, name: str, dtype: torch.dtype, given: dict[str, Any]
    ) -> tuple[Stored | None, dict[str, Any]]:
        """The saved pipeline (None: of the hub) and its constructor's arguments, some of which are `given`."""
        stored = stored or Stored.fetched(name, cls, given)
        return stored, stored.load(dtype, given)

    def use(
        self,
        method: str = "auto",
        *,
        drafter: Any = None,
        rule: Any = None,
        k: int | None = None,
        policy: Any = None,
        shape: Shape = None,
        compile: Compile = None,
        **options: Any,
    ) -> Self:
        """Choose the method, and replace an earlier choice; arguments as in `mmspec.enable`.

        Raises:
            ValueError: A name, an option or the combination is wrong.
        """
        self.fit()
        parts = {"drafter": drafter, "rule": rule, "k": k, "policy": policy, "shape": shape, "compile": compile}
        model = getattr(self, self.target_module)
        how = {**parts, "options": {**self.beside_target, **options}}
        self._decoder = decoder_for(model, method, beside=LOADING, pipeline=True, **how)
        self._use_arguments = {"method": method, **parts, "options": options}
        self._bound_device, self._bound_parts = self._execution_device, self._held_parts()
        return self

    @property
    def beside_target(self) -> Mapping[str, Any]:
        """The objects that the target asks for beside its model: `vq` and `codes`, of a language model over codes."""
        return {}

    def fit(self) -> None:
        """Let the parts know of each other; runs when a pipeline is made, and when a part was replaced.

        Raises:
            ValueError: They do not fit each other; names what differs.
        """

    def _held_parts(self) -> dict[str, Any]:
        return {name: vars(self).get(name) for name in self.config}

    def save_pretrained(self, save_directory: str | Path, **how: Any) -> None:
        """Write the pipeline as diffusers does, and the arguments of `use`; `mmspec.Pipeline.from_pretrained` reads it.

        `diffusers.DiffusionPipeline.from_pretrained` reads it, too, in a process that has imported the pipeline's
        class.

        Raises:
            ValueError: An argument asks for files that `from_pretrained` does not read.
        """
        refuse_unread(how)
        super().save_pretrained(save_directory, **how)
        drafter = None if self._decoder is None else self._decoder.drafter
        save_method(Path(save_directory), self._use_arguments, drafter)

    def decoder(self, k: int | None = None) -> Decoder:
        """The decoder in use, for the parts that the pipeline has now; without an earlier call of `use`, the one of its
        defaults.

        Args:
            k: Units to draft per round; None: as in `use`. A policy other than `fixed` keeps its own bound: under it a
                larger `k` has no effect.

        Raises:
            ValueError: `k` is no integer, or negative; or a part was replaced by one that does not fit the others.
        """
        if self._decoder is None:
            self.use(**self._saved_arguments())
        elif any(part is not self._bound_parts.get(name) for name, part in self._held_parts().items()):
            given = dict(self._use_arguments)
            self.use(**given.pop("options", {}), **given)
        decoder = self._decoder
        assert decoder is not None
        if self._bound_device != self._execution_device:  # drafter and rule may hold tensors of the target
            if isinstance(decoder, SharingDecoder):
                raise ValueError("calls share passes where the model was: use(…) and share_passes(…) again after to(…)")
            decoder = self._decoder = rebound(decoder, decoder.k)
            self._bound_device = self._execution_device
        if k is None or whole("k", k) == decoder.k:
            return decoder
        if isinstance(decoder, SharingDecoder):
            raise ValueError(f"calls that share passes draft k={decoder.k} units: say another number in use(…), before")
        return rebound(decoder, k)

    def share_passes(self, rows: int, thread: Executor | None = None, *, owned: bool = False) -> None:
        """Let calls that run at the same time, each in a thread of its own, share passes of at most so many rows.

        A row is what it is alone; a call that ends makes room for the next one. Who reads a stream holds up the others.
        Callbacks get a copy of the pipeline, with the scale and the size of their call. `use` ends it.

        Args:
            rows: Most rows of a pass.
            thread: As in `mmspec.core.sharing.SharingDecoder`, like `owned`.
            owned: Whether nobody else can change the model.

        Raises:
            ValueError: The passes of the pipeline's model, or its drafter's, belong to one call.
        """
        self._decoder = SharingDecoder(self.decoder(), rows, owned=owned, thread=thread)

    def computed(self, run: Callable[[], Made]) -> Made:
        """The result of a function that runs modules; if calls share passes, in the thread in which these run, so that
        a call's numbers are those that it has alone.
        """
        decoder = self._decoder
        return decoder.shared.run(run) if isinstance(decoder, SharingDecoder) else run()

    @property
    def why(self) -> str:
        """The reason for this method; "" where the user named it."""
        return self.decoder().why

    def __repr__(self) -> str:
        """The parts, as in diffusers, and the method."""
        chosen = self._decoder
        how = "a method that the first call chooses" if chosen is None else f"{chosen.name}, k={chosen.k}"
        why = f" ({chosen.why})" if chosen is not None and chosen.why else ""
        return f"{super().__repr__().rstrip()}\nspeculates by {how}{why}"

    def _saved_arguments(self) -> dict[str, Any]:
        """The saved arguments of `use`, for a pipeline that diffusers loaded."""
        name = self.config.get("_name_or_path")
        return Stored(Path(name)).method({}) if name else {}

    def to(self, *args: Any, **kwargs: Any) -> Self:
        """Move the modules, and the draft model if there is one.

        Raises:
            ValueError: This machine has no such device, or nothing can run there.
        """
        for place in (*args, kwargs.get("device")):
            if isinstance(place, str | torch.device):
                refuse_device(place)
        super().to(*args, **kwargs)
        draft_model = None if self._decoder is None else draft_model_of(self._decoder.drafter)
        if draft_model is not None:
            draft_model.to(self.device)
        return self


def refuse_unread(saving: Mapping[str, Any]) -> None:
    """Refuse arguments of `save_pretrained` that ask for files which `from_pretrained` does not read."""
    if saving.get("variant") is not None:
        raise ValueError("variant= writes weights under names that no mmspec.Pipeline reads: name a folder for each")
    if not saving.get("safe_serialization", True):
        raise ValueError("safe_serialization=False writes pickles, which no mmspec.Pipeline reads: leave it out")


def seeds_for(rows: int, seed: Seed, generator: Generators, each: str = "prompt") -> int | list[int]:
    """One seed for all rows of a call, or one per row. A row's output depends on its own seed, not on the other rows.

    With one `seed`, row i draws as row i of any call; of one `generator`, each row draws its seed, in order. `each` is
    what a row is, for messages.
    """
    if seed is not None and generator is not None:
        raise ValueError("seed= and generator= both say what is drawn; give one of them")
    if isinstance(seed, Sequence) and not isinstance(seed, str):
        seeds = _one_per_row(list(seed), rows, "seeds", each)
        integers(**{f"seed[{i}]": value for i, value in enumerate(seeds)})
        return seeds
    integers(seed=seed)
    if seed is not None:
        return int(seed)
    if generator is None or isinstance(generator, Generator):
        return [_drawn(generator) for _ in range(rows)]
    if not isinstance(generator, Sequence) or not all(isinstance(g, Generator) for g in generator):
        raise ValueError(f"generator is a torch.Generator, or one a {each}, not {generator!r}")
    return [_drawn(g) for g in _one_per_row(list(generator), rows, "generators", each)]


def _one_per_row(values: list[Any], rows: int, what: str, each: str) -> list[Any]:
    if len(values) != rows:
        raise ValueError(f"{len(values)} {what} for {rows} {each}s; give one, or one a {each}")
    return values


def _drawn(generator: Generator | None) -> int:
    device = "cpu" if generator is None else generator.device
    return int(torch.randint(2**62, (), generator=generator, device=device))


def _of_one_call(call: Callable[..., Any]) -> Callable[..., Any]:
    """A pipeline's `__call__`, on a copy of the pipeline where calls run at the same time: it has one call's scale."""

    @functools.wraps(call)
    def called(self: Pipeline, *args: Any, **how: Any) -> Any:
        return call(copy.copy(self) if isinstance(self._decoder, SharingDecoder) else self, *args, **how)

    return called
