"""What a component is tried on, where the kit's own toys do not do.

The kit tries drafters and rules on toys: a Markov chain, a text with memory, an image of codes, a Gaussian image. Give
your factory (a class, or a function) an attribute `example` where that is not enough:

* a **target** is made from a live model, which the kit does not have. Without an example only its manifest is checked.
* a **drafter** may have an option without a default (a small model), learn from call to call, take one row at a time.
* a **rule** or a **drafter** may need a word that no toy offers. (Targets with an example serve all components: a
  drafter that needs `text` is tried on the example of whichever installed target offers `text`.)

`example` takes no arguments and returns an `Example`, or a list of them, each one a way to try the component; or it is
the text `"module:function"` of such a function, so that nothing of it is imported unless the kit runs.

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
from typing import TYPE_CHECKING, Any

from mmspec.registry.specs import FactorySpec, Spec

if TYPE_CHECKING:
    from torch import Tensor

    from mmspec.core.protocols import Target


@dataclass(frozen=True, kw_only=True, eq=False)
class Example:
    """What a component is tried on. Every field may be left out.

    Attributes:
        options: Its options: a value of the dataclass that its manifest names; default: all defaults.
        target: A small target, made in code; default: the kit's toys.
        prompt: What `target.start` takes, for a batch of rows, given as numbers (any number is a row; equal numbers are
            equal prompts). Rows should differ, in their lengths too if they may. Required with `target`.
        again: From units `[batch, known]`, padded on the left, and their padding `[batch]`, to what `target.start`
            takes: the target is then compared with itself after a fresh prefill. Without it (prompts that are not made
            of units: a class, a caption) it is compared with its own one-unit passes.
        guidance: Scale of the guidance under which it is sampled, of a target that gives unconditional scores.
        rows: Most rows of a batch that a drafter takes; default: any number.
        learns: A drafter remembers across rows or calls, so that its drafts (never the output) depend on them.
        strict: Of a lossy rule: option values at which it is exact; default: both ends of every option are tried.
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


def examples_of(component: Spec) -> list[Example]:
    """The examples of a component; none where it has no factory, or its factory names none.

    Raises:
        TypeError: What the attribute `example` gives is no example.
    """
    if not isinstance(component, FactorySpec):
        return []
    given = getattr(component.load(), "example", None)
    if given is None:
        return []
    if isinstance(given, str):
        module, _, name = given.partition(":")
        given = getattr(importlib.import_module(module), name)
    made = given()
    listed = list(made) if isinstance(made, list | tuple) else [made]
    for example in listed:
        if not isinstance(example, Example):
            raise TypeError(
                f"`example` of {component.qualified!r} returns {example!r}, not an Example or a list of them"
            )
    return listed
