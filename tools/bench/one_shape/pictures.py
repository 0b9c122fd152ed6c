"""The promise of one shape on models of pictures: captions in batches, methods at several windows, half precision."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from torch import Tensor

import mmspec
from mmspec.api.build import decoder_for
from mmspec.core.decoder import Decoder
from mmspec.core.report import Report
from mmspec.report.result import PLAIN
from tools.bench.one_shape.cells import Cell, Shape
from tools.bench.pictures.contestants import PictureSampler
from tools.bench.pictures.options import windowed
from tools.bench.pictures.subject import Setting
from tools.bench.pictures.tasks import groups, joined, tasks_of


def cells(
    method: str, windows: Sequence[int], setting: Setting, dtypes: Sequence[str], outputs: int, batch: int
) -> list[Cell]:
    """A cell per dtype, shape and window, of `outputs` pictures in batches."""
    whole = -(-outputs // batch) * batch
    shapes: tuple[Shape, ...] = ("one", "any")
    return [
        Cell(windowed(method, window), dtype, shape, setting.name, batch, whole, {"method": method, "k": window})
        for dtype in dtypes
        for shape in shapes
        for window in windows
    ]


@dataclass(frozen=True)
class Pictures:
    """A pipeline that draws codes; as `tools.bench.one_shape.cells.Subject` asks."""

    model: str  # the pipeline's name
    setting: Setting  # how codes are drawn
    device: str = "cpu"  # where it runs
    piece: str = field(default="picture", init=False)

    def decoder(self, dtype: str, method: str, shape: Any, **options: Any) -> Decoder:
        """A new decoder over the pipeline's transformer."""
        k = options.pop("k", None)
        return decoder_for(_pipe(self.model, self.device, dtype).transformer, method, k=k, shape=shape, options=options)

    def outputs(self, decoder: Decoder, cell: Cell) -> Iterator[tuple[Sequence[Tensor], Report]]:
        """Every picture has a caption and a seed of its own."""
        pipe = _pipe(self.model, self.device, cell.dtype)
        sampler = PictureSampler(pipe.transformer, self.setting.warp)
        for group in groups(tasks_of(pipe, self.setting.guidance, range(cell.outputs), seed=0), cell.batch):
            drawn = sampler(decoder, joined(group))
            assert drawn.report is not None
            yield drawn.units, drawn.report


@cache
def _pipe(name: str, device: str, dtype: str) -> Any:
    pipe = mmspec.Pipeline.from_pretrained(name, device=device, dtype=dtype, method=PLAIN)
    pipe.set_progress_bar_config(disable=True)
    return pipe
