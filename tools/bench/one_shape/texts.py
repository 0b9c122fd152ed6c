"""The promise of one shape on language models: every method, batches, temperatures, half precision."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from torch import Tensor

from mmspec.api.build import decoder_for
from mmspec.core.decoder import Decoder
from mmspec.core.report import Report
from mmspec.core.warp import Warp
from mmspec.hosts.devices import dtype_of
from mmspec.hosts.loading import load_model, load_tokenizer
from mmspec.kits.text.bench.defaults import NEW
from mmspec.kits.text.bench.settings import left_padded, texts
from tools.bench.one_shape.cells import Cell, Shape

GIVEN = 64
"""Tokens of the longest prompt of a batch; row i has 7 i fewer."""
BATCHES = (1, 3)
TEMPERATURES = (0.8, 1.0)


def cells(methods: Mapping[str, Mapping[str, Any]], dtypes: Sequence[str], outputs: int, any_shape: int) -> list[Cell]:
    """All cells: `outputs` texts each under one shape, then `any_shape` texts each under any (0 leaves these out).

    Args:
        methods: Methods with their options; an option `method` names the method if the key does not.
        dtypes: Names of dtypes.
        outputs: Texts of a cell.
        any_shape: Texts of a cell under shape any.
    """
    shapes: tuple[tuple[Shape, int], ...] = (("one", outputs), ("any", any_shape))
    return [
        Cell(name, dtype, shape, f"T = {temperature:g}", batch, -(-wanted // batch) * batch, options)
        for dtype in dtypes
        for shape, wanted in shapes
        for name, options in methods.items()
        for batch in BATCHES
        for temperature in TEMPERATURES
        if wanted
    ]


@dataclass(frozen=True)
class Texts:
    """A language model with the shipped tokenizer; as `tools.bench.one_shape.cells.Subject` asks."""

    model: str
    device: str = "cpu"  # where it runs
    new: int = NEW  # tokens of each output
    piece: str = field(default="text", init=False)

    def decoder(self, dtype: str, method: str, shape: Any, **options: Any) -> Decoder:
        """A new decoder; an option `drafter` names a draft model, which has the same dtype."""
        drafter = _model(options.pop("drafter"), self.device, dtype) if "drafter" in options else None
        k = options.pop("k", None)
        target = _model(self.model, self.device, dtype)
        return decoder_for(target, method, drafter=drafter, k=k, shape=shape, options=options)

    def outputs(self, decoder: Decoder, cell: Cell) -> Iterator[tuple[Sequence[Tensor], Report]]:
        """Every row has a prompt and a seed of its own."""
        warp = Warp.sampling(temperature=float(cell.setting.removeprefix("T = ")))
        pieces = _pieces(self.model)
        for first in range(0, cell.outputs, cell.batch):
            numbers = range(first, first + cell.batch)
            rows = [pieces[n % len(pieces)][0, : GIVEN - 7 * (n - first)] for n in numbers]
            output = decoder.generate(left_padded(rows, self.device), self.new, seed=list(numbers), warp=warp)
            yield output.units, output.report


@cache
def _model(name: str, device: str, dtype: str) -> Any:
    return load_model(name, device, dtype_of(dtype))


@cache
def _pieces(model: str) -> list[Tensor]:
    """Held-out texts, kinds in turns."""
    kinds = texts(load_tokenizer(model)).values()
    return [piece for pieces in zip(*kinds, strict=True) for piece in pieces]
