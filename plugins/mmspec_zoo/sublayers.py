"""Passes of a transformers model without some of its sub-layers.

A layer of a decoder adds the output of its attention to the states, and then the output of its feed-forward part. A
sub-layer that is left out adds nothing. Of a layer without both, and so of all layers behind an early exit, nothing
runs at all. Keys of layers that were left out are missing behind the committed units; the target's own pass over the
draft writes them all.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from mmspec.core.once import once
from mmspec.hosts.attention import model_lock
from mmspec.hosts.devices import device_of
from mmspec.hosts.model_info import ModelInfo

PARTS = (("attention",), ("mlp", "feedforward", "ffn", "moe", "moeblock"))
"""Ends of the names of the classes of a layer's attention, and of its feed-forward part."""


@dataclass(frozen=True)
class SubLayers:
    """The sub-layers of a model; number `2 i` is the attention of layer `i`, and `2 i + 1` its feed-forward part."""

    model_info: ModelInfo  # the facts about the model

    @property
    def layers(self) -> Sequence[nn.Module]:
        """The layers of the model's decoder."""
        return self.model_info.language.layers

    @once
    def parts(self) -> Sequence[nn.Module]:
        """All sub-layers, by number; refuses a layer that has not one module for attention and one for its feed-forward
        part.
        """
        return [part for number, layer in enumerate(self.layers) for part in self._parts_of(number, layer)]

    def from_layer(self, layer: int) -> frozenset[int]:
        """All sub-layers from a layer on: a pass without them leaves the model at that layer."""
        count = len(self.layers)
        if not 0 < layer < count:
            raise ValueError(f"a model of {count} layers can be left behind layer 1 to {count - 1}, not {layer}")
        return frozenset(range(2 * layer, 2 * count))

    @contextmanager
    def left_out(self, numbers: Iterable[int]) -> Iterator[None]:
        """A block in which passes of this thread run without these sub-layers; other threads wait to run the model."""
        gone = frozenset(numbers)
        whole = [number for number in range(len(self.layers)) if {2 * number, 2 * number + 1} <= gone]
        passed = {self.layers[number]: _pass_on for number in whole}
        single = gone - {part for number in whole for part in (2 * number, 2 * number + 1)}
        replaced: Mapping[nn.Module, Any] = {**passed, **{self.parts[number]: _add_nothing for number in single}}
        with model_lock(self.model_info.model), ExitStack() as undo:
            for module, instead in replaced.items():
                undo.callback(_restore, module, vars(module).get("forward"))
                module.forward = partial(instead, self._returns[module])
            yield

    @once
    def _returns(self) -> Mapping[nn.Module, int]:
        """By layer and sub-layer, of how many members a tuple it returns; 0: it returns the states alone."""
        found = dict[nn.Module, int]()

        def note(module: nn.Module, _: Any, output: Any) -> None:
            found[module] = len(output) if isinstance(output, tuple) else 0

        model = self.model_info.model
        with model_lock(model), ExitStack() as hooks, torch.inference_mode():
            for module in {*self.layers, *self._known_parts()}:
                hooks.callback(module.register_forward_hook(note).remove)
            model(input_ids=torch.zeros(1, 1, dtype=torch.int64, device=device_of(model)), use_cache=False)
        return found

    def _known_parts(self) -> Sequence[nn.Module]:
        try:
            return self.parts
        except ValueError:
            return ()  # whole layers can be left out all the same

    def _parts_of(self, number: int, layer: nn.Module) -> Iterator[nn.Module]:
        for names in PARTS:
            found = [child for child in layer.children() if type(child).__name__.lower().endswith(names)]
            if len(found) != 1:
                raise ValueError(
                    f"layer {number} of {type(self.model_info.model).__name__} has {len(found)} modules whose class's "
                    f"name ends with {' or '.join(names)}, and not one, so that its sub-layers cannot be left out one "
                    "by one; layer-skip and del leave out whole layers"
                )
            yield found[0]


def _pass_on(members: int, *args: Any, **kwargs: Any) -> Any:
    """A layer that is not there: what it was given."""
    return _as_returned(_states(args, kwargs), members)


def _add_nothing(members: int, *args: Any, **kwargs: Any) -> Any:
    """A sub-layer that is not there: the layer adds zeros."""
    return _as_returned(torch.zeros_like(_states(args, kwargs)), members)


def _states(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Tensor:
    return args[0] if args else kwargs["hidden_states"]


def _as_returned(states: Tensor, members: int) -> Any:
    return (states, *[None] * (members - 1)) if members else states


def _restore(module: nn.Module, forward: Callable[..., Any] | None) -> None:
    """Let the module run its class's forward, or what another library had put into its place."""
    if forward is None:
        del module.forward
    else:
        module.forward = forward
