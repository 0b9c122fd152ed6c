"""The units of a picture that a language model writes: stages of cells, and ids between and behind them.

A stage is a grid of cells in raster order; a small preview may precede the picture. A row may end with an id of its
own. Everything else follows from this: which units are known in advance, where units lie, which cell is above another.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from mmspec.core.once import once
from mmspec.registry.numbers import whole


@dataclass(frozen=True)
class Stage:
    """A grid of cells in raster order."""

    height: int  # rows
    width: int  # cells of a row
    row_end: int | None = None  # the id behind every row; None: rows follow each other
    last_end: int | None = None  # another id behind the last row, where rows have ends

    def __post_init__(self) -> None:
        if whole("height", self.height) < 1 or whole("width", self.width) < 1:
            raise ValueError(f"a stage of {self.height} rows of {self.width} cells has no cell")


@dataclass(frozen=True)
class GridSpec:
    stages: tuple[Stage, ...]  # in the order in which they are written; the last one is the picture
    tail: tuple[int, ...] = ()  # ids behind the last stage: known ones, or -1 for one that the model draws

    @property
    def length(self) -> int:
        """Units of a picture, row ends and tail included."""
        return len(self.cells)

    @once
    def cells(self) -> tuple[tuple[int, int, int] | None, ...]:
        """Of every unit, its stage, row and column; None: it is no cell."""
        found = list[tuple[int, int, int] | None]()
        for number, stage in enumerate(self.stages):
            for row in range(stage.height):
                found += [(number, row, column) for column in range(stage.width)]
                found += [None] * (stage.row_end is not None)
        return (*found, *[None] * len(self.tail))

    @once
    def forced(self) -> Tensor:
        """`[length]` int64: ids that are known in advance, -1 elsewhere, as in `Warp.forced`."""
        ids = list[int]()
        for stage in self.stages:
            row = [-1] * stage.width + ([] if stage.row_end is None else [stage.row_end])
            ids += row * stage.height
            if stage.row_end is not None and stage.last_end is not None:
                ids[-1] = stage.last_end
        return torch.tensor([*ids, *self.tail], dtype=torch.int64)

    @once
    def picture(self) -> Tensor:
        """`[height * width]` int64: the numbers of the units that are cells of the last stage."""
        last = len(self.stages) - 1
        return torch.tensor([number for number, cell in enumerate(self.cells) if cell is not None and cell[0] == last])

    @once
    def positions(self) -> Tensor:
        """`[3, length]` int64: stage, row and column as positions, counted from the prompt's end; the next stage begins
        behind the longer side of the one before, and the tail goes on behind all of them.
        """
        begins, places = [0], list[tuple[int, int, int]]()
        for stage in self.stages:
            begins.append(begins[-1] + max(stage.height, stage.width))
        for cell in self.cells:
            begin = begins[-1] if cell is None else begins[cell[0]]
            row, column = (0, 0) if cell is None else cell[1:]
            places.append((begin, begin + row, begin + column))
        return torch.tensor(places).T

    def neighbours(self, of: Callable[[int, int, int], tuple[int, int, int]]) -> Tensor:
        """`[length]` int64: of every unit, the number of its neighbour; -1: it has none. `of` takes a cell's stage, row
        and column to its neighbour's, which may lie outside.
        """
        units = {cell: number for number, cell in enumerate(self.cells) if cell is not None}
        return torch.tensor([-1 if cell is None else units.get(of(*cell), -1) for cell in self.cells])

    @once
    def above(self) -> Tensor:
        """The unit above every cell, as in `neighbours`."""
        return self.neighbours(lambda stage, row, column: (stage, row - 1, column))

    @once
    def left(self) -> Tensor:
        """The unit to the left of every cell; above, where a row begins."""
        return self.neighbours(lambda stage, row, column: (stage, row, column - 1) if column else (stage, row - 1, 0))


@runtime_checkable
class Gridded(Protocol):
    """A target whose units are the cells of a square picture, in raster order."""

    grid: int  # units per side


@runtime_checkable
class GridFromPrompt(Protocol):
    """A target whose pictures have the size that the prompt says, in cells of several stages."""

    def grid_of(self, inputs: Any) -> GridSpec | None:
        """The units of the pictures of a call, by its prompt as `start` takes it; None: a constraint of the call has
        them, or it is a text. Refuses a prompt that says no size, or several.
        """
