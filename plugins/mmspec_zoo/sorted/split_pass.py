"""A pass of a transformers model in parts: some of its layers, from the states that earlier layers left.

The layers before and behind the part are left out (`mmspec_zoo.sublayers`), and its first layer is given the states
in the place of those that reach it. What the model does around its layers runs in every part: ids are embedded, which
nobody reads behind the first layer, and norm and output layer give the scores of the sub-model that ends with the part.
Parts whose layers are all of the model's, one after the other, are the whole pass.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from mmspec.hosts.devices import device_of
from mmspec.hosts.features import Reading, Record
from mmspec_zoo.sublayers import SubLayers


@dataclass(frozen=True)
class SplitPass:
    """The layers `begin … end - 1` of a model."""

    sublayers: SubLayers
    begin: int  # the first layer of the part
    end: int  # the layer behind its last one

    @contextmanager
    def alone(self, states: Tensor | None) -> Iterator[Record]:
        """A block in which passes of this thread run this part alone; other threads wait to run the model.

        Its first layer is given `states [batch, node, hidden]`; None if it is the model's first one.

        Yields:
            What keeps the states behind the part, `Record.states`.
        """
        layers = self.sublayers.layers
        gone = [layer for layer in range(len(layers)) if not self.begin <= layer < self.end]
        reading = Reading(self.sublayers.model_info, (self.end,))
        left_out = self.sublayers.left_out(part for layer in gone for part in (2 * layer, 2 * layer + 1))
        with left_out, _given(layers[self.begin], states), reading as record:
            yield record


def split(sublayers: SubLayers, ends: Sequence[int]) -> list[SplitPass]:
    """The parts of a pass that end before these layers.

    Raises:
        ValueError: These are no layers of the model, or its layers hand on more than their states.
    """
    count = len(sublayers.layers)
    if not ends or list(ends) != sorted({*ends}) or not 1 <= ends[0] <= ends[-1] <= count:
        raise ValueError(
            f"a model of {count} layers has sub-models of its first 1 to {count} layers, the smaller ones first; got "
            f"{', '.join(map(str, ends)) or 'none'}"
        )
    parts = [SplitPass(sublayers, begin, end) for begin, end in zip((0, *ends), ends, strict=False)]
    _refuse_unsplit(sublayers, [*parts, *([SplitPass(sublayers, ends[-1], count)] if ends[-1] < count else [])])
    return parts


@torch.inference_mode()
def _refuse_unsplit(sublayers: SubLayers, parts: Sequence[SplitPass]) -> None:
    """Compare a pass in parts with the whole one, over two units."""
    model = sublayers.model_info.model
    ids = torch.tensor([[0, 1]], device=device_of(model))
    call = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "use_cache": False}
    refusal = f"the layers of {type(model).__name__} hand on more than their states, so that its passes have no parts"
    with sublayers.left_out(()):
        whole, states = model(**call).logits, None
    try:
        for part in parts:
            with part.alone(states) as record:
                logits = model(**call).logits
            states = record.states
    except Exception as error:  # what a layer misses is the model's own affair
        raise ValueError(f"{refusal} ({type(error).__name__}: {error})") from error
    if not torch.allclose(logits, whole, rtol=1e-3, atol=1e-3 * float(whole.abs().max())):
        raise ValueError(refusal)


@contextmanager
def _given(layer: nn.Module, states: Tensor | None) -> Iterator[None]:
    """A block in which a layer is given these states."""

    def give(layer: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, Any]:
        return ((states, *args[1:]), kwargs) if args else (args, {**kwargs, "hidden_states": states})

    if states is None:
        yield
        return
    handle = layer.register_forward_pre_hook(give, with_kwargs=True)
    try:
        yield
    finally:
        handle.remove()
