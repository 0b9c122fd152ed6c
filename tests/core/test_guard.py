"""Faults of drafters and policies: such a round runs without a draft, the output stands, one warning says why."""

import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from mmspec.core import guard
from mmspec.core.decoder import Decoder, Output
from mmspec.core.distributions import Categorical, Gaussian
from mmspec.core.drafters.draft_model import DraftModel
from mmspec.core.goodput import Goodput
from mmspec.core.guard import checked
from mmspec.core.policies import Fixed
from mmspec.core.rules import Match, Rejection
from mmspec.core.torch_noise import TorchSource
from mmspec.core.tree import TreeIndex
from mmspec.core.types import Draft
from mmspec.testing.toys.gaussian import GaussianTarget
from mmspec.testing.toys.history import HistoryTarget

VOCAB, ROWS, K, LIMIT = 5, 3, 3, 20
LARGE = HistoryTarget.random(VOCAB, seed=0)
PROMPT = torch.tensor([[0, 1], [2, 3], [4, 4]])
PLAIN = Decoder(LARGE).generate(PROMPT, LIMIT, seed=3).units
UNIFORM = torch.full((ROWS, K, VOCAB), 1 / VOCAB)


class Long:
    """A drafter in the long form: a chain of zeros, or whatever `make` makes of it; other things may be replaced."""

    offers = frozenset({"tree", "q"})
    needs: frozenset[str] = frozenset()

    def __init__(self, make: Callable[[Draft], Any] = lambda draft: draft, **others: Callable[..., Any]) -> None:
        self.make, self.others = make, others
        self.seen: list[str] = []

    def bind(self, target: Any) -> None:
        pass

    def width(self, k: int) -> int:
        return k

    def start(self, state: Any, inputs: Any) -> Any:
        return self._did("start")

    def propose(self, state: Any, k: int, noise: Any) -> Any:
        self._did("propose")
        return self.make(Draft.chain(torch.zeros(state.rows, k, dtype=torch.int64)))

    def observe(self, state: Any, step: Any) -> None:
        self._did("observe")

    def _did(self, what: str) -> Any:
        self.seen.append(what)
        return self.others.get(what, lambda: None)()


def raising(error: Exception) -> Callable[..., Any]:
    def act(*args: Any) -> Any:
        raise error

    return act


def run(drafter: Any, policy: Any = None, k: int = K) -> tuple[Output, list[str]]:
    """A call whose output is compared with plain decoding, and its warnings."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        output = Decoder(LARGE, drafter, k=k, policy=policy).generate(PROMPT, LIMIT, seed=3)
    assert all(torch.equal(a, b) for a, b in zip(output.units, PLAIN, strict=True))
    return output, [str(w.message) for w in caught if "failed" in str(w.message)]


def tree(parents: list[list[int]]) -> Callable[[Draft], Draft]:
    return lambda draft: Draft.tree(draft.units[:, :1].expand(-1, len(parents[0])), torch.tensor(parents * ROWS))


def chained(**parts: Any) -> Callable[[Draft], Draft]:
    """The chain with other parts, which are cut to the length of the round."""
    return lambda draft: replace(draft, **{name: part(draft.units.shape[1]) for name, part in parts.items()})


WRONG: dict[str, tuple[Callable[[Draft], Any], str]] = {
    "none": (lambda draft: None, "returned a NoneType, not a Draft"),
    "a list": (lambda draft: [[1, 2]] * ROWS, "returned a list, not a Draft"),
    "fewer rows": (lambda draft: Draft.chain(draft.units[:2]), "units have the shape"),
    "units of another shape": (lambda draft: Draft.chain(draft.units[..., None]), "units have the shape"),
    "flat units": (lambda draft: replace(draft, units=draft.units[0]), "units have the shape"),
    "floats": (lambda draft: Draft.chain(draft.units.float()), "units are torch.float32"),
    "int32": (lambda draft: Draft.chain(draft.units.int()), "units are torch.int32"),
    "another device": (
        chained(units=lambda n: torch.empty(ROWS, n, dtype=torch.int64, device="meta")),
        "on meta, roots torch.int64",
    ),
    "valid of numbers": (chained(valid=lambda n: torch.ones(ROWS, n)), "valid is torch.float32, not bool"),
    "valid of another shape": (chained(valid=lambda n: torch.ones(ROWS, n + 1) > 0), "valid has the shape"),
    "score of another shape": (chained(score=lambda n: torch.ones(ROWS)), "score has the shape"),
    "a tree of another size": (chained(index=lambda n: TreeIndex.chain(n + 3)), "3 rows of"),
    "a distribution of other rows": (
        chained(distribution=lambda n: Categorical(UNIFORM[:2, :n])),
        "the distribution is",
    ),
    "a distribution of fewer units": (
        chained(distribution=lambda n: Categorical(UNIFORM[:, :n, :4] / 0.8)),
        "over 4 unit ids",
    ),
    "a distribution of unknown ids": (
        chained(distribution=lambda n: Categorical(UNIFORM[:, :n, :2] * 2.5, torch.full((ROWS, n, 2), 7), VOCAB)),
        "the distribution has the id 7",
    ),
    "a distribution of other units": (
        chained(distribution=lambda n: Gaussian(torch.zeros(ROWS, n, 2), 1.0)),
        "distribution is a Gaussian",
    ),
    "an id too large": (lambda draft: Draft.chain(draft.units + VOCAB), "proposed id 5; ids are 0 … 4"),
    "a negative id": (lambda draft: Draft.chain(draft.units - 1), "proposed id -1; ids are 0 … 4"),
    "a parent that comes later": (tree([[1, -1]]), "parents must precede their children"),
    "a parent that is none": (tree([[-1, 7]]), "parents must precede their children"),
    "a parent below the root": (tree([[-1, -5]]), "parents must precede their children"),
    "more nodes than announced": (lambda draft: Draft.chain(draft.units[:, :1].expand(-1, 9)), "9 nodes were drafted"),
}


@pytest.fixture(autouse=True)
def tolerant(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MMSPEC_STRICT", "0")  # which is off, like all that says no


@pytest.mark.parametrize("case", WRONG)
def test_a_draft_that_is_none_costs_a_draft_and_one_warning(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    make, says = WRONG[case]
    output, warned = run(Long(make))
    assert len(warned) == 1 and says in warned[0] and warned[0].startswith("drafter Long failed (")
    assert output.report.faults >= LIMIT - 3 and not output.report.drafted
    monkeypatch.setenv("MMSPEC_STRICT", "1")
    with pytest.raises((TypeError, ValueError), match=says):
        Decoder(LARGE, Long(make), k=K).generate(PROMPT, LIMIT)


def too_deep(draft: Draft) -> Draft:
    parents = torch.arange(-1, draft.units.shape[1] - 1).expand(ROWS, -1)
    return Draft.tree(draft.units, parents, deepest=1)


def test_a_tree_that_is_deeper_than_it_says() -> None:
    output, warned = run(Long(too_deep))
    assert output.report.faults and len(warned) == 1


def test_padding_may_hold_any_id() -> None:
    """A drafted unit that no rule accepts is not a fault; the target does not see it."""
    padded = Long(lambda draft: Draft.chain(draft.units - 1, valid=torch.zeros_like(draft.units, dtype=torch.bool)))
    output, warned = run(padded)
    assert not warned and not output.report.faults


@pytest.mark.parametrize("where", ["start", "observe"])
def test_without_what_it_learns_a_drafter_is_not_asked_again(where: str) -> None:
    drafter = Long(**{where: raising(IndexError("off by one"))})
    output, warned = run(drafter)
    assert output.report.faults == 1 and len(warned) == 1
    assert warned[0] == "drafter Long failed (IndexError: off by one); the rest of this call runs without a draft"
    assert drafter.seen.count(where) == 1 and drafter.seen[-1] == where
    again, _ = run(Long())
    assert again.report.drafted, "and only in this call"


def test_a_drafter_may_refuse_a_call() -> None:
    """The user gets the error, and nothing was drawn."""
    source = TorchSource(torch.default_generator, ROWS, torch.device("cpu"))
    before = torch.get_rng_state()
    with pytest.raises(ValueError, match="not this prompt"):
        Decoder(LARGE, Long(start=raising(ValueError("not this prompt"))), k=K).generate(PROMPT, LIMIT, source=source)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("where", ["start", "propose", "observe"])
@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("no more"),
        MemoryError(),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you"),
        RuntimeError("MPS backend out of memory (MPS allocated: 1 GB)"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    ],
)
def test_memory_that_is_not_there_is_no_drafters_fault(where: str, error: Exception) -> None:
    with pytest.raises(type(error)):
        run(Long(**{where: raising(error)}))


class Odd(Fixed):
    """A policy with a method that fails, or returns something else."""

    def __init__(self, **others: Callable[..., Any]) -> None:
        super().__init__(K)
        object.__setattr__(self, "others", others)

    def budget(self) -> Any:
        return self.others.get("budget", lambda: K)()  # type: ignore[attr-defined]

    def trim(self, draft: Draft) -> Any:
        return self.others.get("trim", lambda draft: draft)(draft)  # type: ignore[attr-defined]

    def observe(self, *args: Any) -> None:
        self.others.get("observe", lambda *args: None)(*args)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("others", "says", "drafts"),
    [
        ({"budget": raising(KeyError("depth"))}, "KeyError", False),
        ({"budget": lambda: None}, "TypeError", False),
        ({"budget": lambda: 2.5}, "TypeError", False),
        ({"trim": raising(RuntimeError("scissors"))}, "RuntimeError: scissors", False),
        ({"trim": lambda draft: None}, "TypeError", False),
        ({"trim": lambda draft: replace(draft, valid=draft.valid[:1])}, "valid has the shape", False),
        ({"observe": raising(ZeroDivisionError("no time"))}, "ZeroDivisionError: no time", True),
    ],
)
def test_policies_are_no_better(others: dict[str, Any], says: str, drafts: bool) -> None:
    output, warned = run(Long(), Odd(**others))
    assert len(warned) == 1 and says in warned[0] and warned[0].startswith("policy Odd failed")
    assert output.report.faults >= LIMIT - 6 and bool(output.report.drafted) == drafts
    with pytest.raises(MemoryError):
        run(Long(), Odd(budget=raising(MemoryError())))


def test_a_drafter_draws_from_torchs_generator_in_vain() -> None:
    """Random proposals change neither the output nor the state of the generator after the call."""

    def guesses(draft: Draft) -> Draft:
        return Draft.chain(torch.randint(VOCAB, draft.units.shape))

    def units(drafter: Any) -> tuple[list[torch.Tensor], torch.Tensor]:
        torch.manual_seed(8)
        source = TorchSource(torch.default_generator, ROWS, torch.device("cpu"))
        return Decoder(LARGE, drafter, k=K).generate(PROMPT, LIMIT, source=source).units, torch.get_rng_state()

    (plain, after), (drafted, there) = units(None), units(Long(guesses, observe=lambda: torch.rand(3)))
    assert all(torch.equal(a, b) for a, b in zip(plain, drafted, strict=True)) and torch.equal(after, there)
    before = torch.get_rng_state()
    run(Long(guesses, start=lambda: torch.rand(1)))
    assert torch.equal(torch.get_rng_state(), before), "other noise is not torch's"


ON_A_DEVICE = ("an id too large", "a negative id", *(case for case in WRONG if case.startswith("a parent")))


@pytest.mark.parametrize("case", [*ON_A_DEVICE, "deeper than it says"])
def test_elsewhere_wrong_nodes_are_refused_on_the_device(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where reading the data would be a sync, nothing is read, and the output is still right."""

    class Unread(TorchDispatchMode):
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            assert function is not torch.ops.aten._local_scalar_dense.default
            return function(*args, **(kwargs or {}))

    def unread(*args: Any) -> Draft:
        with Unread():
            return checked(*args)

    monkeypatch.setattr(guard, "_readable", lambda values: False)
    monkeypatch.setattr(guard, "checked", unread)
    output, warned = run(Long(WRONG[case][0] if case in WRONG else too_deep))
    assert not warned and not output.report.faults


@pytest.mark.parametrize("k", [-1, True, False, 2.0, "3", None, [3]])
def test_k_is_a_whole_number(k: Any) -> None:
    with pytest.raises(ValueError, match="k must be an integer >= 0, got "):
        Decoder(LARGE, Long(), k=k)


def test_a_huge_k_is_cut_before_anything_is_made() -> None:
    asked: list[int] = []

    class Wide(Long):
        def width(self, k: int) -> int:
            asked.append(k)
            return k

    output, _ = run(Wide(), Goodput(10**6), k=10**6)
    assert asked == [LIMIT - 1] and output.report.drafted
    bounded = HistoryTarget(LARGE.table)
    bounded.context = 9  # type: ignore[attr-defined]
    Decoder(bounded, Wide(), k=10**6).start(PROMPT, 100)
    assert asked[1:] == [9]


def test_goodput_counts_the_depths_that_it_saw() -> None:
    """Deeper ones follow as a geometric series: the same as adding them up one by one."""
    policy = Goodput(12)
    for emitted in (3, 1, 2, 4):
        policy.observe(3, [emitted], 1.0)
    chance, reached, total = 1.0, 1.0, 1.0
    for depth in range(1, 13):
        known = depth < len(policy._tried)
        tried, taken = (policy._tried[depth], policy._taken[depth]) if known else (0.0, 0.0)
        chance = (taken + chance) / (tried + 1)
        reached *= chance
        total += reached
        assert abs(policy.units(depth) - total) < 1e-12
    assert Goodput(10**6).units(10**6) == 10**6 + 1


@pytest.mark.parametrize(
    ("rule", "policy", "repeatable"),
    [(Match(), Goodput(K), True), (Rejection(), Fixed(K), True), (Rejection(), Goodput(K), False)],
)
def test_the_report_says_where_a_seed_does_not_say_all(rule: Any, policy: Any, repeatable: bool) -> None:
    report = Decoder(LARGE, DraftModel(LARGE.near(1)), rule, k=K, policy=policy).generate(PROMPT, LIMIT).report
    assert report.repeatable == repeatable
    assert ("not repeatable: draft lengths follow the clock" in str(report)) != repeatable


def test_continuous_drafts_are_looked_at_too() -> None:
    target = GaussianTarget.random(2, 1, 0)
    plain = Decoder(target, None, Rejection()).generate(2, 6, seed=1).units

    class Ids(Long):
        offers = frozenset({"chain"})

        def propose(self, state: Any, k: int, noise: Any) -> Draft:
            return Draft.chain(torch.zeros(state.rows, k, dtype=torch.int64))

    with pytest.warns(UserWarning, match="units have the shape|units are torch.int64"):
        output = Decoder(target, Ids(), Rejection(), k=2).generate(2, 6, seed=1)
    assert output.report.faults and all(torch.equal(a, b) for a, b in zip(plain, output.units, strict=True))
