"""The promise of one shape on frames of codes: recorded clips, windows, half precision."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from torch import Tensor

import mmspec
from mmspec.api.build import decoder_for
from mmspec.bench.methods import decoder_arguments
from mmspec.core.decoder import Decoder
from mmspec.core.report import Report
from mmspec.report.result import PLAIN
from mmspec_video.models.token_world import TokenWorldModel
from mmspec_video.playing.tokens import TokenPlay
from mmspec_video.recorded import folder_of, recorded
from tools.bench.one_shape.cells import Cell, Shape
from tools.bench.video.clips import Task
from tools.bench.video.model_bench import ModelBench
from tools.bench.video.settings import BenchOptions

METHOD = "frame-gs-sjd"
WINDOWS = (8, 16, 32)
SETTING = "T = 1"


def cells(dtypes: Sequence[str], clips: int) -> list[Cell]:
    """A cell per dtype, shape and window."""
    shapes: tuple[Shape, ...] = ("one", "any")
    return [
        Cell(f"{METHOD}, window {k}", dtype, shape, SETTING, 1, clips, {"method": METHOD, "k": k})
        for dtype in dtypes
        for shape in shapes
        for k in WINDOWS
    ]


@dataclass
class Clips:
    """A model of frames of codes; as `tools.bench.one_shape.cells.Subject` asks.

    Raises:
        ValueError: There is no such model, it makes frames by denoising, or there are no recorded clips.
    """

    model: str  # the pipeline's name
    frames: int  # new frames of a clip
    device: str = "cpu"  # where it runs
    piece: str = field(default="clip", init=False)

    def __post_init__(self) -> None:
        self._pipes: dict[str, Any] = {}
        if not isinstance(self._pipe("bfloat16").transformer, TokenWorldModel):
            raise ValueError(f"{self.model} makes frames by denoising; one shape is of models of codes")

    def decoder(self, dtype: str, method: str, shape: Any, **options: Any) -> Decoder:
        """A new decoder over the pipeline's transformer."""
        how = decoder_arguments({"method": method, **options})
        return decoder_for(self._pipe(dtype).transformer, **how, shape=shape)

    def outputs(self, decoder: Decoder, cell: Cell) -> Iterator[tuple[Sequence[Tensor], Report]]:
        """Clips in turns, a seed each; all actions are known from the start."""
        options = BenchOptions(repeats=1, clips=cell.outputs, frames=self.frames)
        bench = ModelBench(self._pipe(cell.dtype), self._recorded, (), options, self.device)
        for task in bench.legs[0]:
            play = _played(decoder, task)
            yield [play.frames[0, -play.shown :].flatten()], play.report

    @cached_property
    def _recorded(self) -> Any:
        return recorded([folder_of(self.model)])

    def _pipe(self, dtype: str) -> Any:
        if dtype not in self._pipes:
            how = {"device": self.device, "dtype": dtype, "method": PLAIN}
            self._pipes[dtype] = mmspec.Pipeline.from_pretrained(self.model, **how)
        return self._pipes[dtype]


def _played(decoder: Decoder, task: Task) -> TokenPlay:
    play = TokenPlay(decoder, task.first, task.before, task.actions.shape[1], task.seed)
    play.act(task.actions)
    for _ in range(task.actions.shape[1]):
        play.frame()
    return play
