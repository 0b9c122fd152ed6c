"""One shape per call: every pass after the prefill has one width, and the output stays that of plain decoding."""

import warnings
from typing import Any

import pytest
import torch

from mmspec.core.decoder import Decoder
from mmspec.core.drafters.draft_model import DraftModel
from mmspec.core.drafters.host import HostDrafterAdapter
from mmspec.core.policies import Fixed
from mmspec.core.round import padded
from mmspec.core.rules import Rejection
from mmspec.core.tree import TreeIndex
from mmspec.core.types import Draft, Prefill
from mmspec.testing.toys.history import HistoryTarget
from mmspec.testing.toys.markov_drafters import MarkovTree

PROMPT = torch.tensor([[0, 1], [2, 3], [4, 4]])
LIMIT = 12


class Watched(HistoryTarget):
    """A target that can keep to one shape, and notes the nodes of its passes and how much its cache must hold."""

    prefers_one_shape = False

    def __init__(self, table: torch.Tensor) -> None:
        super().__init__(table)
        self.model = torch.nn.Module()
        self.passes: list[int] = []
        self.widths: list[int] = []

    def start_fixed(self, inputs: Any, limit: int, width: int) -> Prefill:
        self.widths.append(width)
        return self.start(inputs, limit, width)

    def verify(self, cache: Any, draft: Draft, first: int = 0) -> Any:
        self.passes.append(draft.nodes)
        return super().verify(cache, draft, first)


TABLE = HistoryTarget.random(5, seed=0).table
SMALL = HistoryTarget(TABLE).near(1, 0.3)
PLAIN = [row.tolist() for row in Decoder(HistoryTarget(TABLE)).generate(PROMPT, LIMIT, seed=3).units]


class Sometimes:
    """Drafts of every length, none, and a fault."""

    def __init__(self) -> None:
        self.calls = 0

    def propose(self, tokens: list[list[int]], k: int) -> list[list[int]]:
        self.calls += 1
        if self.calls == 2:
            raise RuntimeError("a bad day")
        return [[1] * (self.calls % (k + 1)) for _ in tokens]


DRAFTERS = {
    "none": lambda: None,
    "model": lambda: DraftModel(SMALL),
    "tree": lambda: MarkovTree(torch.randn(5, 5, 5, generator=torch.Generator().manual_seed(0)), (2, 1)),
    "sometimes": lambda: HostDrafterAdapter(Sometimes()),
}


@pytest.mark.parametrize("shape", ["one", 9])
@pytest.mark.parametrize("name", DRAFTERS)
def test_all_passes_have_one_width_and_the_output_is_plain(name: str, shape: Any) -> None:
    target = Watched(TABLE)
    decoder = Decoder(target, DRAFTERS[name](), k=4, shape=shape)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        output = decoder.generate(PROMPT, LIMIT, seed=3)
    width = decoder.one_width()
    assert width is not None and width == output.report.width == target.widths[0]
    assert set(target.passes) == {width} == set(output.report.sizes)
    assert [row.tolist() for row in output.units] == PLAIN
    assert f"to the bit with plain of width {width}" in str(output.report)


def test_a_budget_of_0_and_a_short_text_keep_the_width() -> None:
    for limit, policy in ((LIMIT, Fixed(0)), (2, None)):
        target = Watched(TABLE)
        Decoder(target, DraftModel(SMALL), k=4, policy=policy, shape="one").generate(PROMPT, limit, seed=3)
        assert set(target.passes) == {5} and target.widths == [5]


def test_counts_do_not_see_the_padding() -> None:
    reports = [
        Decoder(Watched(TABLE), DraftModel(SMALL), k=4, shape=shape).generate(PROMPT, LIMIT, seed=3).report
        for shape in ("any", 9)
    ]
    one, other = ((r.drafted, r.accepted_by_depth, r.rounds, r.emitted) for r in reports)
    assert one == other and "width" not in str(reports[0]) and "near-ties" in reports[0].shape


def test_none_is_what_the_target_prefers() -> None:
    class Prefers(Watched):
        prefers_one_shape = True

    assert Decoder(Watched(TABLE), DraftModel(SMALL), k=4, shape=None).one_width() is None
    assert Decoder(Prefers(TABLE), DraftModel(SMALL), k=4, shape=None).one_width() == 5
    # Under a rule whose output depends on the drafts there is no plain decoding to be equal to.
    assert Decoder(Prefers(TABLE), DraftModel(SMALL), Rejection(), k=4, shape=None).one_width() is None
    assert Decoder(HistoryTarget(TABLE), DraftModel(SMALL), k=4, shape=None).one_width() is None


@pytest.mark.parametrize(
    ("shape", "rule", "target", "says"),
    [
        (4, None, Watched, "k=4 have 5 nodes, .* shape=4 has room for 4; use shape=5"),
        ("one", None, HistoryTarget, "HistoryTarget cannot run all passes with one number of nodes; use shape='any'"),
        (9, Rejection(), Watched, "under Rejection the output depends on the drafts"),
        ("once", None, Watched, "did you mean 'one'"),
        (0, None, Watched, "at least 1"),
        (2.5, None, Watched, "shape"),
        (True, None, Watched, "shape"),
    ],
)
def test_shapes_that_cannot_be_kept(shape: Any, rule: Any, target: Any, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        Decoder(target(TABLE), DraftModel(SMALL), rule, k=4, shape=shape)


def test_padding_is_behind_the_tree() -> None:
    tree = TreeIndex.static([-1, 0, 0, 1])
    wide = tree.padded(6)
    fresh = TreeIndex.static([-1, 0, 0, 1, 0, 0])
    for name in ("parent", "depth", "ancestor", "rank"):
        assert torch.equal(getattr(wide, name), getattr(fresh, name))
    assert (wide.deepest, wide.widest) == (fresh.deepest, fresh.widest)
    rows = TreeIndex.dynamic(torch.tensor([[-1, 0, 1], [-1, 0, 0]])).padded(5)
    assert rows.ancestor.shape == (2, 5, 5) and rows.parent[:, 3:].eq(0).all()
    assert TreeIndex.chain(3).padded(5) == TreeIndex.chain(5)


def test_padding_is_invalid_and_can_be_embedded() -> None:
    root, room = torch.tensor([3, 4]), torch.tensor([5, 5])
    draft = padded(Draft.chain(torch.tensor([[1], [2]])).rooted(root, room), 4)
    assert draft.units.tolist() == [[3, 1, 3, 3], [4, 2, 4, 4]] and draft.index.is_chain
    assert draft.valid.tolist() == [[True, True, False, False]] * 2
    numbers = padded(Draft.alone(torch.randn(2, 3)), 4)
    assert numbers.units.shape == (2, 4, 3) and numbers.units.isfinite().all()


@pytest.mark.parametrize(
    ("drafter", "device", "dtype", "promise"),
    [
        ("tree", "meta", torch.bfloat16, None),
        ("model", "meta", torch.bfloat16, "chains keep their slots"),
        ("tree", "meta", torch.float32, "that of float32"),
        ("tree", "cpu", torch.bfloat16, "sums are float64"),
    ],
)
def test_trees_elsewhere_than_on_a_cpu_promise_no_width(
    drafter: str, device: str, dtype: torch.dtype, promise: str | None
) -> None:
    target = Watched(TABLE)
    target.model = torch.nn.Linear(1, 1, device=device, dtype=dtype)
    report = Decoder(target, DRAFTERS[drafter](), k=4, shape="one").generate(PROMPT, LIMIT, seed=3).report
    assert len(report.sizes) == 1
    if promise:
        assert report.exactness == "invariant" and "to the bit" in report.shape and report.width in report.sizes
    else:
        assert report.exactness == "lossless" and report.width is None
        assert "to the bit" not in str(report) + report.shape and "not in units" in report.shape
