"""`mmspec.Rows`: a pipeline as a function from batches of a table to batches, for Ray Data and the like.

Engines of tables split a table as they like, in other batches each time, and compute rows again when a worker is lost.
A row's seed is made of its id, so that under an invariant method a row has one output, however the table was split.
"""

import inspect
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np

from mmspec.api.pipeline import Pipeline
from mmspec.api.row_values import argument, as_json, cells, ids_of, is_missing, objects, seed_of, shape_of, together
from mmspec.core.threads import Caller
from mmspec.registry.numbers import integers
from mmspec.registry.printable import first_line
from mmspec.registry.suggest import unknown

INPUTS = ("prompt", "class_labels", "negative_prompt", "first_frames", "actions")
"""Columns with one argument a row: texts, numbers, pictures as bytes of PNG or JPEG, lists of actions."""
GROUP = (
    "height", "width", "guidance_scale", "num_inference_steps", "max_new_tokens", "temperature", "top_k", "top_p",
    "min_p",
)  # fmt: skip
"""Columns with an argument that a call has once: rows that differ in one go into calls of their own."""
OURS = ("seed", "method", "report", "error")  # columns that are written for every row, beside its output
MANAGED = (
    "seed",
    "generator",
    "output_type",
    "return_dict",
    "streamer",
    "num_images_per_prompt",
    "num_return_sequences",
)
"""Arguments of pipelines that `Rows` sets."""
EXACTNESS = ("invariant", "lossless", "lossy")  # the promises of methods, the strongest first
MISTAKES = (ValueError, TypeError, OSError)  # errors that a row's own contents cause; all others stop the batch


class Rows:
    """Computes rows of a table; it is made of names and numbers, and can be pickled. A worker loads its own pipeline.

    Args:
        name: The pipeline, as in `mmspec.Pipeline.from_pretrained`.
        method: The method, as in `mmspec.enable`.
        seed: The run's seed; a row's own is `mmspec.api.row_values.seed_of(seed, id)`.
        id: The column of ids: texts or integers, each once.
        inputs: Columns with one argument a row; those that the table or the pipeline does not have are left out.
        group: Columns with arguments of a whole call, likewise.
        rows: Most rows of a pass; None: all rows of a batch that agree in `group` and in their shapes. `rows=1` makes
            rows independent of each other in half precision, too, where the width of a batch changes rounding. Where
            calls can share passes (texts), every row is a call of its own, and one that ends makes room for the next:
            take batches of many times so many rows. Elsewhere rows that agree are one call.
        exactness: The least that the method has to promise. Under `invariant`, a row depends on nothing but its
            arguments and its seed. Under `lossless` its distribution does not: which draw it is depends on the batch.
        loading: Further arguments of `from_pretrained`: `device`, `dtype`, `k`, `policy`, options of the method.
        **call: Arguments of every call of the pipeline; a column of `group` takes precedence.

    Raises:
        ValueError: An argument is no name or number, or one that `Rows` itself sets.

    Example:
        ```python
        table = ray.data.read_parquet("prompts.parquet")
        table.map_batches(
            mmspec.Rows, fn_constructor_args=("mmspec/emoji",), fn_constructor_kwargs={"guidance_scale": 3.0},
            batch_size=16, compute=ray.data.ActorPoolStrategy(size=4),
        ).write_parquet("pictures")
        ```
    """

    def __init__(
        self,
        name: str,
        *,
        method: str = "auto",
        seed: int = 0,
        id: str = "id",
        inputs: Sequence[str] = INPUTS,
        group: Sequence[str] = GROUP,
        rows: int | None = None,
        exactness: str = "invariant",
        loading: Mapping[str, Any] | None = None,
        **call: Any,
    ) -> None:
        integers(seed=seed, rows=rows)
        if rows is not None and rows < 1:
            raise ValueError(f"rows must be at least 1, got {rows}")
        if exactness not in EXACTNESS:
            raise ValueError(unknown("exactness", exactness, EXACTNESS))
        managed = [argument for argument in call if argument in MANAGED]
        if managed:
            raise ValueError(f"{managed[0]}= is set by Rows: a row has one output, drawn with the seed of its id")
        self.name, self.method, self.seed, self.id = str(name), method, seed, id
        self.inputs, self.group, self.rows = tuple(inputs), tuple(group), rows
        self.exactness, self.loading, self.call = exactness, dict(loading or {}), call
        for what, value in (*self.loading.items(), *call.items()):
            _refuse_objects(what, value)
        self._pipe: Pipeline | None = None
        self._caller: Caller | None = None  # runs the passes that calls of the pipeline share; None: they share none

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_pipe": None, "_caller": None}

    def description(self) -> dict[str, Any]:
        """All that decides the outputs, as names and numbers; the size of calls does not."""
        return {name: value for name, value in vars(self).items() if name not in ("_pipe", "_caller", "rows")}

    def reads(self, columns: Sequence[str]) -> list[str]:
        """The columns of a table that may be arguments.

        Raises:
            ValueError: There is no id, no input, or a column has the name of one that is written.
        """
        if self.id not in columns:
            raise ValueError(f"the table has no column {self.id!r} with ids; it has {', '.join(columns) or 'none'}")
        clash = [column for column in columns if column in OURS]
        if clash:
            raise ValueError(f"the table has a column {clash[0]!r}, which is written here; rename it")
        found = [column for column in columns if column in self.inputs and column != self.id]
        if not found:
            raise ValueError(f"the table has none of the columns {', '.join(self.inputs)}; name others by inputs=")
        return [self.id, *found, *(column for column in columns if column in self.group)]

    def pipeline(self) -> Pipeline:
        """The pipeline; loaded by the first call.

        Raises:
            ValueError: The method promises less than `exactness`, or the pipeline does not have an argument of `call`.
        """
        if self._pipe is None:
            pipe = Pipeline.from_pretrained(self.name, method=self.method, **self.loading)
            pipe.set_progress_bar_config(disable=True)
            self._refuse_weak(pipe)
            known = _parameters(pipe)
            for wrong in (argument for argument in self.call if argument not in known):
                raise ValueError(unknown("argument", wrong, sorted(known - set(MANAGED))))
            # Pictures have as many units each: rows of one call end together, and are decided together
            if pipe.makes == "text" and (self.rows or 1) > 1 and pipe.decoder().captures.way is None:
                with suppress(ValueError):  # rows that agree are one call, then
                    caller = Caller()
                    pipe.share_passes(self.rows or 1, caller)
                    self._caller = caller
            self._pipe = pipe
        return self._pipe

    def __call__(self, batch: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Compute the rows of a batch.

        Args:
            batch: Columns of one length.

        Returns:
            The batch's columns, and: the output (`text`, `image` as PNG, or `video` as GIF, by what the pipeline
            makes); `seed`; `method`; `report`, the JSON of a call's counters on the call's first row, so that a table's
            reports add up; `error`, why a row has no output. Cells without content are None.

        Raises:
            ValueError: An id is missing or stands twice, a column is missing, or the method promises too little.
        """
        pipe = self.pipeline()
        known, reads = _parameters(pipe), self.reads(list(batch))
        ids = ids_of(batch[self.id], self.id)
        computed = [_Row(number, seed_of(self.seed, id)) for number, id in enumerate(ids)]
        for row in computed:
            cells_of = {name: batch[name][row.number] for name in reads[1:] if name in known}
            row.take({name: cell for name, cell in cells_of.items() if not is_missing(cell)}, self.group)
        if self._caller is None:
            for call in self._calls(computed, self.rows):
                self._compute(pipe, call)
        else:
            calls = self._calls(computed, 1)
            self._caller.run([partial(self._compute, pipe, call) for call in calls], self.rows or 1)
        written: dict[str, list[Any]] = {
            pipe.makes: [row.output for row in computed],
            "method": [pipe.decoder().name] * len(ids),
            "report": [row.report for row in computed],
            "error": [row.error for row in computed],
        }
        seeds = np.array([row.seed for row in computed], dtype=np.uint64)
        return {**batch, "seed": seeds, **{name: objects(values) for name, values in written.items()}}

    def _calls(self, computed: list["_Row"], most: int | None) -> Iterator[list["_Row"]]:
        """The rows call by call, of `most` rows each; None: of all that agree."""
        groups: dict[Any, list[_Row]] = {}
        for row in computed:
            if row.error is None:
                groups.setdefault(row.key(), []).append(row)
        for group in groups.values():
            step = most or len(group)
            yield from (group[start : start + step] for start in range(0, len(group), step))

    def _compute(self, pipe: Pipeline, call: list["_Row"]) -> None:
        """Compute the rows of one call; if one of them has a mistake, each in a call of its own."""
        inputs = {name: together([row.inputs[name] for row in call]) for name in call[0].inputs}
        seeds = [row.seed for row in call]  # a list: of one number, every row would make another by its place
        try:
            output = pipe(**{**self.call, **call[0].shared, **inputs}, seed=seeds)
        except MISTAKES as error:
            if len(call) > 1:
                for row in call:
                    self._compute(pipe, [row])
            else:
                call[0].error = first_line(error)
            return
        for row, cell in zip(call, cells(output), strict=True):
            row.output = cell
        call[0].report = as_json(output.report)

    def _refuse_weak(self, pipe: Pipeline) -> None:
        if not pipe.makes:
            raise ValueError(f"{type(pipe).__name__} does not say what it makes (`makes`), so it has no column")
        decoder = pipe.decoder()
        held = decoder.rule.exactness
        if held not in EXACTNESS or EXACTNESS.index(held) > EXACTNESS.index(self.exactness):
            raise ValueError(
                f"the method {decoder.name} is {held}: the same row of another batch would be another draw. Take an "
                f"invariant method (`mmspec methods`), or say exactness={held!r}"
            )


class _Row:
    """A row on its way: its arguments, then its output."""

    def __init__(self, number: int, seed: int) -> None:
        self.number, self.seed = number, seed
        self.inputs: dict[str, Any] = {}
        self.shared: dict[str, Any] = {}
        self.output: str | bytes | None = None
        self.report: str | None = None
        self.error: str | None = None

    def take(self, given: Mapping[str, Any], group: Sequence[str]) -> None:
        """Read the cells; what cannot be read is the row's error."""
        try:
            for name, cell in given.items():
                (self.shared if name in group else self.inputs)[name] = argument(cell)
        except MISTAKES as error:
            self.error = first_line(error)
        if not self.inputs and self.error is None:
            self.error = "ValueError: the row has no input, such as a prompt"

    def key(self) -> Any:
        shapes = {name: shape_of(value) for name, value in self.inputs.items()}
        return str(sorted(shapes.items())), str(sorted(self.shared.items()))


def _parameters(pipe: Pipeline) -> set[str]:
    return set(inspect.signature(pipe.__call__).parameters)


def _refuse_objects(what: str, value: Any) -> None:
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError):
        raise ValueError(
            f"{what}= takes names and numbers here, since workers get them as such, not {value!r}"
        ) from None
