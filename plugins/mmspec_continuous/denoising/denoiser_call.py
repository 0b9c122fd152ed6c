"""One call of a denoiser, taken apart so that the states of further steps can be put into it.

A pipeline calls its denoiser (unet or transformer) on `copies` of the batch (classifier-free guidance doubles it),
scaled for the network, with a timestep and conditions. A call of another form raises `UnsupportedCall`; the network is
then called with the pipeline's arguments as they are. Conditions, and what a denoiser returns, are nests of mappings
(diffusers' outputs too), lists and tuples.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

_PLAIN = (type(None), bool, int, float, str)
SHARED = ("img_ids", "txt_ids")  # conditions that are tables of positions, of one entry for all states
TIMES = (1, 1000)
"""A denoiser is told the scheduler's timestep, or this share of it: transformers of flows count from 0 to 1."""


class UnsupportedCall(Exception):
    """This call cannot be made for several states at once; the message says why."""


@dataclass(frozen=True)
class DenoiserCall:
    """The arguments of a denoiser's `forward`."""

    bound: inspect.BoundArguments  # the arguments, bound to the signature of `forward`
    first: str  # name of the argument that holds the states
    copies: int  # how many copies of the batch the states are
    share: int = 1  # one of `TIMES`

    @staticmethod
    def read(signature: inspect.Signature, rows: int, args: Sequence[Any], kwargs: Mapping[str, Any]) -> "DenoiserCall":
        """Take apart a call that was made for a batch of `rows`; raises `UnsupportedCall` where it has no timestep, or
        other states than copies of the batch.
        """
        bound = signature.bind(*args, **kwargs)
        first = next(iter(bound.arguments), "")
        states = bound.arguments.get(first)
        if "timestep" not in bound.arguments or not isinstance(states, Tensor):
            raise UnsupportedCall("the denoiser takes no (states, timestep)")
        if len(states) % rows:
            raise UnsupportedCall(f"the denoiser is called on {len(states)} rows for a batch of {rows}")
        return DenoiserCall(bound, first, len(states) // rows)

    @property
    def states(self) -> Tensor:
        """`[copies * batch, *unit]`."""
        states: Tensor = self.bound.arguments[self.first]
        return states

    @property
    def conditions(self) -> dict[str, Any]:
        """All arguments but the states and the timestep."""
        own = (self.first, "timestep")
        return {name: value for name, value in self.bound.arguments.items() if name not in own}

    def at_state(self, scaled: Tensor, t: Tensor) -> "DenoiserCall":
        """The call, made on `copies` of `scaled [batch, *unit]` at timestep `t`; raises `UnsupportedCall` where the
        states or the timestep are others.
        """
        if not torch.equal(self.stacked([scaled]), self.states):
            raise UnsupportedCall("the denoiser does not see what the scheduler returned")
        timestep = torch.as_tensor(self.bound.arguments["timestep"]).flatten()
        told = t.to(timestep.device, timestep.dtype)
        shares = [share for share in TIMES if bool((timestep == (told / share if share > 1 else told)).all())]
        if not shares or len(timestep) not in (1, len(self.states)):
            raise UnsupportedCall("the denoiser's timestep is not the scheduler's")
        return replace(self, share=shares[0])

    def stacked(self, scaled: Sequence[Tensor]) -> Tensor:
        """States of several steps, each in as many copies as the pipeline passes: `[step * copies * rows, *unit]`."""
        return torch.cat([x for x in scaled for _ in range(self.copies)]).to(self.states.dtype)

    def at_steps(self, scaled: Sequence[Tensor], timesteps: Tensor, rows: Tensor) -> inspect.BoundArguments:
        """The same call for some rows at several steps at once; the steps stand one after another in the batch.

        `scaled` has the states of every step, `[m, *unit]` each, `timesteps [step]`, and `rows [m]` int64 says which
        rows of the batch these are. Raises `UnsupportedCall` where a condition is neither a number or word nor a tensor
        with an entry per state.
        """
        count, each = len(self.states), self.copies * len(rows)
        selected = self.in_copies(rows)

        def spread(value: Any) -> Any:
            if not isinstance(value, Tensor):
                if not isinstance(value, _PLAIN):
                    raise UnsupportedCall(f"the denoiser is given a {type(value).__name__}")
                return value
            if value.dim() and len(value) != count:
                raise UnsupportedCall(f"the denoiser is given a tensor of {len(value)} rows with {count} states")
            return value[selected].repeat(len(scaled), *(1,) * (value.dim() - 1)) if value.dim() else value

        call = inspect.BoundArguments(self.bound.signature, type(self.bound.arguments)(self.bound.arguments))
        timestep = self.bound.arguments["timestep"]
        dtype = timestep.dtype if isinstance(timestep, Tensor) else timesteps.dtype
        for name, value in self.conditions.items():
            call.arguments[name] = value if name in SHARED else map_leaves(value, spread)
        call.arguments[self.first] = self.stacked(scaled)
        times = timesteps.to(self.states.device, dtype).repeat_interleave(each)
        call.arguments["timestep"] = times / self.share if self.share > 1 else times
        return call

    def in_copies(self, rows: Tensor) -> Tensor:
        """Where `rows [m]` of the batch stand in all copies of it: `[copies * m]`."""
        batch = len(self.states) // self.copies
        return torch.cat([rows + batch * copy for copy in range(self.copies)])


def map_leaves(nest: Any, change: Callable[[Any], Any]) -> Any:
    """A nest of the same types with every leaf replaced by `change(leaf)`."""
    if isinstance(nest, Mapping):
        changed = {name: map_leaves(inner, change) for name, inner in nest.items()}
        return type(nest)(**changed) if type(nest) is not dict else changed
    if isinstance(nest, (list, tuple)):
        return type(nest)(map_leaves(inner, change) for inner in nest)
    return change(nest)


def leaves_of(nest: Any) -> list[Any]:
    """All leaves of a nest, in the order of `map_leaves`."""
    found: list[Any] = []
    map_leaves(nest, found.append)
    return found


def prediction_in(output: Any) -> Tensor | None:
    """The prediction in what a denoiser returned: its first entry; None where that is no tensor."""
    if isinstance(output, Mapping):
        output = next(iter(output.values()), None)
    elif isinstance(output, (list, tuple)):
        output = output[0]
    return output if isinstance(output, Tensor) else None


def equal_nests(a: Any, b: Any) -> bool:
    """True if two nests have the same structure and equal leaves."""
    if a is b:
        return True
    if type(a) is not type(b):
        return False
    if isinstance(a, Tensor):
        return a.shape == b.shape and bool(torch.equal(a, b))
    if isinstance(a, Mapping):
        return a.keys() == b.keys() and all(equal_nests(a[name], b[name]) for name in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(equal_nests, a, b))
    return bool(a == b)
