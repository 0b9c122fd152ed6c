"""Products of expert layers in decoding: batched ones where stock decoding makes these, and under one shape.

`grouped_mm` of transformers sorts units by expert: what a unit gets may round by how many others chose the same one.
`batched_mm` copies the weights of every chosen expert for every unit and rounds each by itself. Stock `generate`
prefills with grouped products and, on every device but the CPU, decodes with batched ones. So do passes over drafts
here; under one shape they do on the CPU, too, since only then a unit's scores do not depend on the others. Copies cost
memory in proportion to the nodes of a pass: above `MOST` bytes a layer, products stay grouped.
"""

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from transformers import PreTrainedModel

MOST = 2**30  # the most bytes of copied weights of one layer

GROUPED, BATCHED = "grouped_mm", "batched_mm"
_CHOSEN = ("num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_top_k", "moe_k", "top_k_experts")
"""Settings of transformers that count the experts of a unit."""


@dataclass(frozen=True)
class Experts:
    """The expert layers of a model whose products transformers can choose."""

    configs: tuple[Any, ...]  # the configurations that name the products
    unit_bytes: int  # weights of the experts of one unit, in the layer where they are largest; 0 without such a layer

    @classmethod
    def of(cls, model: Any) -> "Experts":
        """Find the expert layers of a live model."""
        parts = [part for part in model.modules() if isinstance(part, PreTrainedModel)]
        choosing = [part for part in parts if part._can_set_experts_implementation()]
        configs = {id(part.config): part.config for part in choosing}
        largest = max((_bytes(layer) for part in choosing for layer in part.modules() if _is_layer(layer)), default=0)
        return cls(tuple(configs.values()), largest)

    def batched(self, units: int) -> bool:
        """True if passes over so many units can make batched products: some layers can, and the copies fit."""
        return 0 < self.unit_bytes * units <= MOST

    @contextmanager
    def decoding(self, units: int, device: str, fixed: bool) -> Iterator[None]:
        """Inside the block, products are made as in a decoding pass. `fixed` says that the call has one shape."""
        grouped = [config for config in self.configs if config._experts_implementation == GROUPED]
        if not grouped or not (fixed or device != "cpu") or not self.batched(units):
            yield
            return
        for config in grouped:
            config._experts_implementation_internal = BATCHED
        try:
            yield
        finally:
            for config in grouped:
                config._experts_implementation_internal = GROUPED


def one_by_one(model: Any) -> str | None:
    """The class of expert layers that loop over the experts which were chosen, so that torch cannot trace them: how
    often and over how many units depends on data. Layers of `Experts` have no such loop in a decoding pass.
    """
    kinds = {type(layer) for layer in model.modules()}
    return next((kind.__name__ for kind in kinds if _loops(kind.forward)), None)


def _loops(forward: Any) -> bool:
    """True if a forward is given the experts of every unit, and asks which ones there are."""
    code = forward.__code__ if inspect.isfunction(forward) else None
    return code is not None and "top_k_index" in code.co_varnames and "nonzero" in code.co_names


def _is_layer(module: Any) -> bool:
    """True if transformers dispatches a module's products; its decorator sets these attributes."""
    return {"has_gate", "is_transposed", "num_experts"} <= vars(module).keys()


def _bytes(layer: Any) -> int:
    """Bytes of the weights that one unit multiplies with."""
    weights = sum(weight.nbytes for weight in layer.parameters(recurse=False))
    chosen = (getattr(layer.config, name, None) for name in _CHOSEN)
    return weights // layer.num_experts * next((n for n in chosen if isinstance(n, int)), layer.num_experts)
