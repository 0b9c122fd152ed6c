"""Rounds that are recorded as they are, which is what `compile=None` does on CUDA; here they run over the same buffers.

What a graph cannot hold is found without a GPU: on the logical device a round's function waits for nothing, and the
tensors that it reads are kept.
"""

import gc
import weakref
from typing import Any

import pytest
import torch
from transformers import LlamaConfig

import mmspec
from mmspec.api.build import decoder_for
from mmspec.core import promise
from mmspec.core.compile import captured, rounds
from mmspec.core.compile.launch import Reading
from mmspec.core.compile.pool import MOST
from mmspec.core.decoder import Decoder
from mmspec.core.known_units import OnlyAllowed
from mmspec.core.warp import Warp
from mmspec.kits.pictures.grid_spec import GridSpec, Stage
from mmspec_image.constraint import GridConstraint
from tests.captured.conftest import kept_for, lockstep, rounds_of
from tests.captured.test_text import WIDE, ragged
from tests.support.random_models import noisy, random_model

METHODS: dict[str, dict[str, Any]] = {
    "plain": {},
    "prompt-lookup": {"k": 5},
    "token-recycling": {"k": 4},
    "suffix": {"k": 5},
}


@pytest.fixture
def model() -> Any:
    return random_model(LlamaConfig(**{**WIDE, "num_hidden_layers": 2}), gain=4.0)


@pytest.fixture(autouse=True)
def _recording(monkeypatch: pytest.MonkeyPatch) -> None:
    """This device records."""
    monkeypatch.setattr(captured, "RECORDING", ("cpu",))


def pair(model: Any, method: str, **how: Any) -> tuple[Decoder, Decoder]:
    """A decoder that runs eagerly, with the passes of one that is recorded, and that one."""
    how = {**METHODS.get(method, {}), **how}
    return decoder_for(model, method, shape="one", compile=False, **how), decoder_for(model, method, **how)


@pytest.mark.parametrize(
    ("method", "late"), [("plain", True), ("prompt-lookup", True), ("token-recycling", False), ("suffix", True)]
)
def test_units_are_the_eager_loops(model: Any, method: str, late: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if late:
        monkeypatch.setattr(rounds, "READ_AT_ONCE", ())
    eager, recorded = pair(model, method)
    for temperature in (0.0, 0.9):
        lockstep(eager, recorded, ragged(), 20, seed=3, warp=Warp.sampling(temperature), ends=[7])
        found = recorded.generate(ragged(), 20, seed=4, warp=Warp.sampling(temperature))
        expected = eager.generate(ragged(), 20, seed=4, warp=Warp.sampling(temperature))
        assert all(map(torch.equal, found.units, expected.units))
        assert found.report.recorded and not found.report.compiled
        assert found.report.accepted == expected.report.accepted
    assert len(rounds_of(recorded)) == 4, "with ends and without, sampled and greedy"


@pytest.mark.parametrize("method", ["prompt-lookup", "draft-model", "jacobi-text"])
def test_half_precision(model: Any, method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """To the bit the text of recorded plain decoding of that width, read late, with drafts that are accepted."""
    monkeypatch.setattr(rounds, "READ_AT_ONCE", ())
    model.to(torch.bfloat16)
    how: dict[str, Any] = {"drafter": noisy(model, 0.05)} if method == "draft-model" else {}
    recorded = decoder_for(model, method, k=4, **how)
    plain = decoder_for(model, "plain", shape=recorded.one_width())
    accepted = 0
    for temperature in (0.0, 0.9):
        call: dict[str, Any] = {"seed": 3, "warp": Warp.sampling(temperature)}
        found, expected = (decoder.generate(ragged(), 24, **call) for decoder in (recorded, plain))
        assert found.report.recorded and found.report.shape == "to the bit with recorded plain of width 5"
        assert all(map(torch.equal, found.units, expected.units))
        accepted += found.report.accepted
    assert accepted


def test_rules_that_draw_fresh_numbers(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """They have rounds of one shape where rounds are captured, and nowhere else; the numbers are the eager loop's."""
    monkeypatch.setattr(rounds, "READ_AT_ONCE", ())
    how: dict[str, Any] = {"drafter": model, "k": 3, "rule": "rejection"}
    eager, recorded = (decoder_for(model, "draft-model", **how) for _ in range(2))
    eager.captures.refused = True
    assert lockstep(eager, recorded, ragged(), 20, seed=3, warp=Warp.sampling(0.9)) > 4


def test_what_cannot_be_recorded_is_as_without(model: Any) -> None:
    """A call with a processor that reads the history has passes of any shape, and says once why it runs eagerly."""
    stock = model.generate(**ragged(), max_new_tokens=12, do_sample=False, repetition_penalty=1.3)
    with mmspec.enable(model, "prompt-lookup", k=5) as handle:
        with pytest.warns(UserWarning, match="this call is not recorded, and runs eagerly: Repetition"):
            found = model.generate(**ragged(), max_new_tokens=12, do_sample=False, repetition_penalty=1.3)
        assert torch.equal(found, stock) and not handle.report.recorded and handle.report.width is None
        stock_again = model.generate(**ragged(), max_new_tokens=12, do_sample=False)
        assert handle.report.recorded and handle.report.width == 6
    assert torch.equal(model.generate(**ragged(), max_new_tokens=12, do_sample=False), stock_again)


def test_constraints_of_equal_data_share_a_round() -> None:
    """A pipeline makes a new one for every picture."""

    def key(size: int, prompt: int) -> Any:
        grid = GridConstraint(GridSpec((Stage(2, size, 7),), (8,)), (3, 4, 5), prompt)
        return Warp([OnlyAllowed(grid, grid.allowed)], forced=grid.forced).key

    assert key(3, 10) == key(3, 12) != key(4, 10)


def _replaced(model: Any) -> None:
    layer = model.model.layers[0].mlp.down_proj
    layer.weight = torch.nn.Parameter(layer.weight.detach() * 1.5)


def _hooked(model: Any) -> None:
    model.model.layers[0].mlp.register_forward_hook(lambda module, given, out: out * 1.5)


def _switched(model: Any) -> None:
    model.model.layers[0].mlp.scale = 1.5


def _in_place(model: Any) -> None:
    model.model.layers[0].mlp.down_proj.weight.data.mul_(1.5)


def _halved(model: Any) -> None:
    model.to(torch.bfloat16)


@pytest.mark.parametrize("change", [_replaced, _hooked, _switched, _in_place, _halved])
def test_what_the_user_does_between_two_calls_is_noticed(model: Any, change: Any) -> None:
    mlp = model.model.layers[0].mlp
    mlp.scale, forward = 1.0, type(mlp).forward
    mlp.register_forward_hook(lambda module, given, out: out * module.scale)
    assert forward is type(mlp).forward
    _, recorded = pair(model, "prompt-lookup")
    before = recorded.generate(ragged(), 20, warp=Warp.sampling(0))
    known = rounds_of(recorded)
    change(model)
    found = recorded.generate(ragged(), 20, warp=Warp.sampling(0))
    expected = decoder_for(model, "plain", shape=6, compile=False).generate(ragged(), 20, warp=Warp.sampling(0))
    assert found.report.recorded and all(map(torch.equal, found.units, expected.units))
    assert change is _in_place or rounds_of(recorded)[-1] not in known
    assert change is _halved or not all(map(torch.equal, found.units, before.units))


def test_memory_is_freed_with_the_handle(model: Any) -> None:
    with mmspec.enable(model, "prompt-lookup", k=5):
        for rows in range(1, 7):
            model.generate(torch.full((rows, 20), 7), max_new_tokens=2, do_sample=False)
        assert len(kept_for(model)) == MOST["recorded"]
        cache = weakref.ref(kept_for(model)[0].cache)
        assert decoder_for(model, "plain", compile=True).generate(ragged(), 4).report.compiled
    gc.collect()
    (compiled,) = kept_for(model)
    assert compiled.plan.compiled and cache() is None, "what took long to compile is kept"


def test_what_a_graph_reads_is_kept() -> None:
    """Tensors from outside, each storage once; nothing that the block made, and no weight, which its owner may move."""
    table, other, weight = torch.ones(3, 4), torch.ones(4), torch.nn.Parameter(torch.ones(4, 4), requires_grad=False)
    with Reading() as reading:
        made = table[1] + other
        (made * table[2]).add_(made @ weight.T)
    assert [t.untyped_storage().data_ptr() for t in reading.found] == [table.data_ptr(), other.data_ptr()]


def test_passes_that_differ_from_themselves_promise_nothing(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """As those of one node over two rows do on CUDA in half precision."""
    monkeypatch.setattr(promise, "in_half_precision", lambda target, on_cpu: True)
    ids = torch.tensor([[3, 4, 5, 3, 4], [6, 7, 8, 6, 7]])
    for method, rows, promised in (("plain", 2, False), ("plain", 1, True), ("suffix", 2, True)):
        report = decoder_for(model, method, shape="one", compile=False).generate(ids[:rows], 6).report
        assert (report.exactness == "invariant") is report.repeatable is (report.width is not None) is promised
        assert promised or "not repeatable: on this device equal passes of one node may differ" in str(report)
