"""The engine of a cluster: Ray Data sends batches to a pool of workers, each with a pipeline of its own.

A worker that is lost is replaced, and its batches are computed again; rows that come twice are equal, and the run keeps
the first. Rows with errors come back as such: no errors of tasks are ignored, since that would drop rows.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from mmspec.api.row_values import objects
from mmspec.api.rows import MISTAKES, Rows
from mmspec.registry.printable import one_line, shown

REFUSED = "refused"
"""The column in which a worker says why it computes nothing: Ray would wrap an exception in a page of its own."""


def on_ray(
    address: str, workers: int, batch: int, worker: Callable[[Rows], Any] | None = None
) -> Callable[[Rows, Iterable[Mapping[str, Any]]], Iterator[Mapping[str, Any]]]:
    """The engine, for `mmspec.tables.run.run`.

    The address is the cluster's, as in `ray.init`; `local` starts one on this machine; it is without effect where this
    process is connected already. Every worker loads a pipeline in a process of its own, and `worker` says what it makes
    of the rows; default: the rows themselves. A batch has at most `batch` rows: Ray cuts batches where its blocks end.
    """
    try:
        import ray
        import ray.data
    except ImportError as error:
        raise ImportError(f"--ray needs Ray: pip install 'mmspec[ray]' ({error})") from error

    def compute(rows: Rows, batches: Iterable[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
        own = not ray.is_initialized()
        if own:
            try:
                ray.init(address=address, include_dashboard=False, log_to_driver=False)
            except (ConnectionError, ValueError) as error:
                raise ValueError(f"no cluster of Ray at {address!r}: {shown(error)}") from error
        ray.data.DataContext.get_current().enable_progress_bars = False
        try:
            items = [dict(zip(one, cells, strict=True)) for one in batches for cells in zip(*one.values(), strict=True)]
            # A block is the least that is computed again, and the most that one worker takes at a time.
            blocks = max(1, -(-len(items) // batch))
            computed = ray.data.from_items(items, override_num_blocks=blocks).map_batches(
                _Worker,
                fn_constructor_args=(rows, worker),
                batch_size=batch,
                batch_format="numpy",
                zero_copy_batch=False,
                num_gpus=_gpus(rows),
                compute=ray.data.ActorPoolStrategy(size=workers),
            )
            for result in computed.iter_batches(batch_size=None, batch_format="numpy"):
                if REFUSED in result:
                    raise ValueError(str(result[REFUSED][0]))
                yield result
        finally:
            if own:
                ray.shutdown()

    return compute


class _Worker:
    """The contents of a worker's process: its own pipeline, loaded by the first batch."""

    def __init__(self, rows: Rows, worker: Callable[[Rows], Any] | None) -> None:
        self.compute = rows if worker is None else worker(rows)

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        try:
            return self.compute(batch)
        except (*MISTAKES, ImportError) as error:  # of a whole run, such as a model that is not there
            return {REFUSED: objects([one_line(error)])}


def _gpus(rows: Rows) -> int | None:
    """One GPU a worker, where the pipelines are to be on GPUs."""
    return 1 if str(rows.loading.get("device", "cpu")).startswith("cuda") else None
