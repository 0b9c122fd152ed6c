"""Examples on which a component is tried where the kit's own toys are not enough.

The kit tries drafters and rules on toy targets: a Markov chain, a text with memory, a picture of codes, a Gaussian
picture. Give your factory (a class or a function) an attribute `example` if it needs something else:

* a **target** is made from a live model, which the kit does not have. Without an example only its manifest is checked.
* a **drafter** may have an option without a default (a small model), learn from call to call, or take one row at a
  time.
* a **rule** or a **drafter** may need a word that no toy offers. (The examples of targets serve all components: a
  drafter that needs `text` is tried on the kit's example of `text:transformers`.)

`example` takes no arguments and returns an `Example`, or a list of them, each one a way to try the component. It may
also be the text `"module:function"` of such a function, so that the module is imported only when the kit runs. Examples
that a plugin does not ship are given to the kit by name: `check_component("acme", examples={"acme:mine": my_example})`.

Example:
    ```python
    class MyTarget:
        offers = frozenset({"discrete", "tree"})

        @staticmethod
        def example() -> Example:
            return Example(target=MyTarget(tiny_model()), prompt=lambda rows: torch.tensor([[r % 7, 1] for r in rows]))


    class MyDrafter:
        example = "mmspec_acme.example:my_drafter"  # returns Example(options=MyOptions(model=tiny_model()))
    ```
"""

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from mmspec.registry.specs import FactorySpec, Spec

if TYPE_CHECKING:
    from torch import Tensor

    from mmspec.core.protocols import Target


@dataclass(frozen=True, kw_only=True, eq=False)
class Example:
    """An example on which a component is tried. Every field may be left out.

    Attributes:
        options: The component's options: a value of the dataclass that its manifest names; default: all defaults.
        target: A small target, made in code; default: the kit's toys.
        prompt: Makes what `target.start` takes for a batch of rows. Rows are given as numbers (any number is a row;
            equal numbers are equal prompts) and should differ, in their lengths too if they may. Required with
            `target`.
        again: Makes what `target.start` takes from units `[batch, known]`, padded on the left, and their padding
            `[batch]`: the target is then compared with itself after a fresh prefill. Without it (for prompts that are
            not made of units: a class, a caption) the target is compared with its own one-unit passes.
        guidance: Guidance scale at which a target with unconditional scores is sampled.
        rows: Most rows of a batch that a drafter takes; default: any number.
        learns: Whether a drafter remembers across rows or calls, so that its drafts (never the output) depend on them.
        strict: Option values at which a lossy rule is exact; default: both ends of every option are tried.

    Raises:
        ValueError: `target` is given without `prompt`, or `rows` is less than 1.
    """

    options: Any = None
    target: "Target | None" = None
    prompt: "Callable[[Sequence[int]], Any] | None" = None
    again: "Callable[[Tensor, Tensor], Any] | None" = None
    guidance: float | None = None
    rows: int | None = None
    learns: bool = False
    strict: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.target is not None and self.prompt is None:
            raise ValueError("an Example with a target needs prompt=, which makes its inputs for a batch of rows")
        if self.rows is not None and self.rows < 1:
            raise ValueError(f"rows is the most rows that a drafter takes, at least 1; got {self.rows}")


Maker = Callable[[], Example | list[Example]]


@runtime_checkable
class HasExample(Protocol):
    """A factory that says what its components are tried on."""

    example: Maker | str  # makes examples, or the place of what makes them as `"module:function"`


OWN = {"mmspec.hosts.target:TransformersTarget": "mmspec.testing.tiny_models:transformers"}
"""Examples of factories that lie below this package and therefore cannot name theirs."""


def examples_of(component: Spec, given: Mapping[str, Maker]) -> list[Example]:
    """The examples of a target, drafter or rule; none if it has no factory, and nobody names one.

    Those that are `given`, by qualified name, come before those that factories name.
    """
    if not isinstance(component, FactorySpec):
        return []
    factory = component.load()
    make: Any = given.get(component.qualified, OWN.get(component.factory))
    if make is None and isinstance(factory, HasExample):
        make = factory.example
    if make is None:
        return []
    if isinstance(make, str):
        module, _, name = make.partition(":")
        make = getattr(importlib.import_module(module), name)
    result = make()
    examples = list(result) if isinstance(result, list | tuple) else [result]
    for each in examples:
        if not isinstance(each, Example):
            raise TypeError(f"`example` of {component.qualified!r} returns {each!r}, not an Example or a list of them")
    return examples
