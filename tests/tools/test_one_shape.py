"""`python -m tools.bench one-shape`: what it compares, what it counts, and that a stopped one goes on."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from typer.testing import CliRunner

from mmspec.core.decoder import Decoder
from mmspec.core.drafters.draft_model import DraftModel
from mmspec.core.report import Report
from mmspec.core.types import Draft, Prefill, TargetOutput
from mmspec.testing.toys.history import HistoryTarget
from tools.bench.__main__ import build
from tools.bench.one_shape import cells as one_shape
from tools.bench.one_shape.cells import Cell
from tools.bench.one_shape.texts import cells
from tools.cards.equality import load

TABLE = HistoryTarget.random(5, seed=0).table


class Rounding(HistoryTarget):
    """A target whose scores depend on how many nodes a pass has, as half precision makes them."""

    prefers_one_shape = False

    def start_fixed(self, inputs: Any, limit: int, width: int) -> Prefill:
        return self.start(inputs, limit, width)

    def verify(self, cache: Any, draft: Draft, first: int = 0) -> TargetOutput:
        output = super().verify(cache, draft, first)
        assert output.logits is not None
        return TargetOutput(logits=output.logits.roll(draft.nodes, -1))


class Toy:
    """The subject, which notes the decoders that it made."""

    model, piece, device = "toy", "text", "cpu"

    def __init__(self) -> None:
        self.made: list[tuple[str, Any]] = []

    def decoder(self, dtype: str, method: str, shape: Any, **options: Any) -> Decoder:
        self.made.append((method, shape))
        drafter = None if method == "plain" else DraftModel(HistoryTarget(TABLE).near(1, 0.3))
        return Decoder(Rounding(TABLE), drafter, k=options.get("k", 3), shape=shape)

    def outputs(self, decoder: Decoder, cell: Cell) -> Iterator[tuple[Sequence[Tensor], Report]]:
        for first in range(0, cell.outputs, cell.batch):
            seeds = list(range(first, first + cell.batch))
            output = decoder.generate(torch.tensor([[0, 1]] * cell.batch), 12, seed=seeds)
            yield output.units, output.report


ONE = Cell("draft-model", "bfloat16", "one", "T = 1", 2, 4, {"k": 3})
ANY = replace(ONE, shape="any")
WIDER = replace(ONE, options={"k": 4})


def test_one_shape_is_equal_and_any_shape_is_not() -> None:
    subject = Toy()
    one, any_shape, wider = one_shape.measure(subject, [ONE, ANY, WIDER], None)
    assert (one.equal, one.outputs, one.width, one.units) == (4, 4, 4, 48) and not one.apart
    assert (wider.equal, wider.width) == (4, 5) and one.acceptance_length > 1
    assert any_shape.equal < 4 and any_shape.width is None and len(any_shape.apart) == 4 - any_shape.equal
    assert all(0 < unit < 12 for _, unit in any_shape.apart), "the prefill's unit is the same"
    assert subject.made[1::2] == [("plain", 4), ("plain", "any"), ("plain", 5)]


def test_plain_runs_once_per_width_and_a_stopped_benchmark_goes_on(tmp_path: Path) -> None:
    file, subject = tmp_path / "toy.jsonl", Toy()
    again = replace(ONE, name="other")

    class StoppedError(Exception):
        pass

    def stop() -> None:
        if len(load(file)) == 2:
            raise StoppedError

    with pytest.raises(StoppedError):
        one_shape.measure(subject, [ONE, again, WIDER], file, stop)
    assert [made for made in subject.made if made[0] == "plain"] == [("plain", 4)]
    later = Toy()
    found = one_shape.measure(later, [ONE, again, WIDER], file)
    assert later.made == [("draft-model", "one"), ("plain", 5)] and found == load(file)
    assert [cell.method for cell in found] == ["draft-model", "other", "draft-model"]


def test_a_longer_output_is_another_one() -> None:
    assert one_shape._first(torch.tensor([1, 2, 3]), torch.tensor([1, 2])) == 2
    assert one_shape._first(torch.tensor([1, 2]), torch.tensor([1, 5])) == 1
    assert one_shape._first(torch.tensor([1, 2]), torch.tensor([1, 2])) == -1


def test_cells_of_language_models() -> None:
    found = cells({"suffix": {"k": 8}, "auto": {}}, ["bfloat16", "float16"], 17, 0)
    assert len(found) == 2 * 2 * 2 * 2 and {cell.shape for cell in found} == {"one"}
    assert {(cell.batch, cell.outputs) for cell in found} == {(1, 17), (3, 18)}
    assert len(cells({"suffix": {}}, ["float16"], 4, 2)) == 8


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("text", "--dtype", "bfloat"), "did you mean 'bfloat16'"),
        (("image", "--json", "/none/x"), "there is no folder"),
    ],
)
def test_mistakes_are_told_before_anything_runs(arguments: tuple[str, ...], says: str) -> None:
    run = CliRunner().invoke(build(), ["one-shape", *arguments])
    assert isinstance(run.exception, ValueError) and says in str(run.exception)


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments",
    [
        ("text", "--texts", "3", "--any-shape", "0", "--new-tokens", "16"),
        ("ssm", "--texts", "1", "--any-shape", "0", "--new-tokens", "12"),
        ("image", "--pictures", "1", "--batch", "1"),
        ("video", "--clips", "1", "--frames", "2"),
    ],
    ids=lambda arguments: arguments[0],
)
def test_shipped_models(arguments: tuple[str, ...], tmp_path: Path) -> None:
    file = tmp_path / "found.jsonl"
    run = CliRunner().invoke(build(), ["one-shape", *arguments, "--dtype", "bfloat16", "--json", str(file)])
    assert run.exit_code == 0, run.output
    kept = [cell for cell in load(file) if cell.shape == "one"]
    assert kept and all(cell.equal == cell.outputs for cell in kept)
    assert any(cell.acceptance_length > 1 for cell in kept), "nothing was accepted, so nothing was tested"
