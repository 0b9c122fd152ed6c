"""What a component is tried on where the kit's own toys are not enough.

The kit tries drafters and rules on toy targets: a Markov chain, a text with memory, a picture of codes, a Gaussian
picture. Give your factory (a class or a function) an attribute `example` if it needs something else:

* a **target** is made from a live model, which the kit does not have. Without an example only its manifest is checked.
* a **drafter** may have an option without a default (a small model), learn from call to call, or take one row at a
  time.
* a **rule** or a **drafter** may need a word that no toy offers. (The examples of installed targets serve all
  components: a drafter that needs `text` is tried on the example of an installed target that offers `text`.)

`example` takes no arguments and returns an `Example`, or a list of them, each one a way to try the component. It may
also be the text `"module:function"` of such a function, so that the module is imported only when the kit runs.

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

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    from torch import Tensor

    from mmspec.core.protocols import Target


@dataclass(frozen=True, kw_only=True, eq=False)
class Example:
    """What a component is tried on. Every field may be left out.

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


@runtime_checkable
class HasExample(Protocol):
    """A factory that says what its components are tried on."""

    # A function that returns an `Example` or a list of them, or its place as `"module:function"`
    example: Callable[[], Example | list[Example]] | str
