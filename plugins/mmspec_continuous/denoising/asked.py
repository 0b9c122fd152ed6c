"""One call of a denoiser, taken apart so that more states can be put into it.

A pipeline calls its denoiser on `copies` of the batch (guidance doubles it), scaled, with a timestep and conditions.
Whatever is not understood raises `Unclear`, and the call is then made as it came.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

_PLAIN = (type(None), bool, int, float, str)


class Unclear(Exception):
    """This call cannot be made for several states at once; says why."""


@dataclass(frozen=True)
class Asked:
    """A denoiser's arguments.

    Attributes:
        bound: As its `forward` takes them.
        first: Name of the argument that holds the states.
        copies: How often the batch stands there.
    """

    bound: inspect.BoundArguments
    first: str
    copies: int

    @staticmethod
    def read(signature: inspect.Signature, rows: int, args: Sequence[Any], kwargs: Mapping[str, Any]) -> "Asked":
        """Take a call apart, made for a batch of `rows`.

        Raises:
            Unclear: It has no timestep, or its states are not copies of the batch.
        """
        bound = signature.bind(*args, **kwargs)
        first = next(iter(bound.arguments), "")
        states = bound.arguments.get(first)
        if "timestep" not in bound.arguments or not isinstance(states, Tensor):
            raise Unclear("the denoiser takes no (states, timestep)")
        if len(states) % rows:
            raise Unclear(f"the denoiser is called on {len(states)} rows for a batch of {rows}")
        return Asked(bound, first, len(states) // rows)

    @property
    def states(self) -> Tensor:
        """`[copies * batch, *unit]`."""
        states: Tensor = self.bound.arguments[self.first]
        return states

    @property
    def conditions(self) -> dict[str, Any]:
        """All the other arguments, without the timestep."""
        own = (self.first, "timestep")
        return {name: value for name, value in self.bound.arguments.items() if name not in own}

    def refuse_another_state(self, scaled: Tensor, t: Tensor) -> None:
        """Refuse a call that is not made on `copies` of `scaled [batch, *unit]` at `t`.

        Raises:
            Unclear: It is made on something else.
        """
        if not torch.equal(self.stacked([scaled]), self.states):
            raise Unclear("the denoiser does not see what the scheduler returned")
        given = torch.as_tensor(self.bound.arguments["timestep"]).flatten()
        if not bool((given == t.to(given.device)).all()) or len(given) not in (1, len(self.states)):
            raise Unclear("the denoiser's timestep is not the scheduler's")

    def stacked(self, scaled: Sequence[Tensor]) -> Tensor:
        """States of several steps, each as the pipeline would pass it: `[step * copies * rows, *unit]`."""
        return torch.cat([x for x in scaled for _ in range(self.copies)]).to(self.states.dtype)

    def many(self, scaled: Sequence[Tensor], timesteps: Tensor, rows: Tensor) -> inspect.BoundArguments:
        """The same call for some rows at several steps at once, step by step.

        Args:
            scaled: By step, `[m, *unit]`.
            timesteps: `[step]`.
            rows: `[m]` int64, which rows of the batch these are.

        Raises:
            Unclear: A condition does not go by rows.
        """
        count, each = len(self.states), self.copies * len(rows)
        take = self.in_copies(rows)

        def spread(value: Any) -> Any:
            if not isinstance(value, Tensor):
                if not isinstance(value, _PLAIN):
                    raise Unclear(f"the denoiser is given a {type(value).__name__}")
                return value
            if value.dim() and len(value) != count:
                raise Unclear(f"the denoiser is given a tensor of {len(value)} rows with {count} states")
            return value[take].repeat(len(scaled), *(1,) * (value.dim() - 1)) if value.dim() else value

        made = inspect.BoundArguments(self.bound.signature, type(self.bound.arguments)(self.bound.arguments))
        given = self.bound.arguments["timestep"]
        kind = given.dtype if isinstance(given, Tensor) else timesteps.dtype
        for name, value in self.conditions.items():
            made.arguments[name] = leaves(value, spread)
        made.arguments[self.first] = self.stacked(scaled)
        made.arguments["timestep"] = timesteps.to(self.states.device, kind).repeat_interleave(each)
        return made

    def in_copies(self, rows: Tensor) -> Tensor:
        """`rows [m]` of the batch in every copy of it: `[copies * m]`."""
        batch = len(self.states) // self.copies
        return torch.cat([rows + batch * copy for copy in range(self.copies)])


def leaves(value: Any, change: Callable[[Any], Any]) -> Any:
    """The same nest of mappings (diffusers' outputs too), lists and tuples, with every leaf changed."""
    if isinstance(value, Mapping):
        changed = {name: leaves(inner, change) for name, inner in value.items()}
        return type(value)(**changed) if type(value) is not dict else changed
    if isinstance(value, (list, tuple)):
        return type(value)(leaves(inner, change) for inner in value)
    return change(value)


def first_of(output: Any) -> Tensor | None:
    """The prediction in what a denoiser returned."""
    if isinstance(output, Mapping):
        output = next(iter(output.values()), None)
    elif isinstance(output, (list, tuple)):
        output = output[0]
    return output if isinstance(output, Tensor) else None


def alike(a: Any, b: Any) -> bool:
    """Whether two nests hold the same numbers."""
    if a is b:
        return True
    if type(a) is not type(b):
        return False
    if isinstance(a, Tensor):
        return a.shape == b.shape and bool(torch.equal(a, b))
    if isinstance(a, Mapping):
        return a.keys() == b.keys() and all(alike(a[name], b[name]) for name in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(alike, a, b))
    return bool(a == b)
