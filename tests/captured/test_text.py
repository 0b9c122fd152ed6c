"""Captured rounds over language models: every method, ragged batches, ends, processors; and what cannot be captured."""

import copy
import warnings
from typing import Any

import pytest
import torch
from transformers import Gemma3TextConfig, LlamaConfig, MistralConfig

import mmspec
from mmspec.api.build import decoder_for, rebound
from mmspec.core import frozen
from mmspec.core.compile import check
from mmspec.core.compile.rounds import CapturedRound
from mmspec.core.decoder import Decoder
from mmspec.core.types import Draft
from mmspec.core.warp import Warp
from mmspec.hosts import linear
from mmspec.hosts.buffer_cache import BufferCache
from mmspec.hosts.target import TransformersTarget
from mmspec.testing.tiny_models import SIZES
from mmspec.testing.toys.history import HistoryTarget
from tests.captured.conftest import forget, kept_for, lockstep, rounds_of
from tests.support.half import HALF
from tests.support.random_models import random_model

WIDE: dict[str, Any] = {
    **SIZES,
    "vocab_size": 61,
    "hidden_size": 32,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
METHODS: dict[str, dict[str, Any]] = {
    "plain": {"shape": 6},
    "prompt-lookup": {"k": 5},
    "suffix": {"k": 5},
    "token-recycling": {"k": 4},
    "draft-model": {"k": 5},
    "draft-tree": {"k": 3, "options": {"nodes": 7}},
    "cascade": {"k": 5},
}
"""Chains are of one length, so that all of them run on one captured round."""


@pytest.fixture(scope="module")
def model() -> Any:
    return random_model(LlamaConfig(**WIDE), gain=4.0)


@pytest.fixture
def own() -> Any:
    """A model that no other test has captured rounds of, nor the failures of."""
    return random_model(LlamaConfig(**{**WIDE, "num_hidden_layers": 1}), gain=4.0)


@pytest.fixture(scope="module")
def small() -> Any:
    return random_model(LlamaConfig(**WIDE), gain=4.0, seed=0, head=8.0)


def ragged() -> dict[str, Any]:
    """Three prompts of which two are padded, each of which repeats itself."""
    torch.manual_seed(1)
    ids = torch.randint(2, 61, (3, 5)).repeat(1, 4)
    mask = torch.ones_like(ids)
    mask[1, :7], mask[2, :13] = 0, 0
    return {"input_ids": ids * mask, "attention_mask": mask}


def both(model: Any, method: str, small: Any = None, **how: Any) -> tuple[Decoder, Decoder]:
    """The eager and the captured decoder of a method."""
    how = {"shape": "one", **METHODS.get(method, {}), **how}
    drafter = small if method.startswith("draft") else None
    return tuple(decoder_for(model, method, drafter=drafter, compile=c, **how) for c in (None, True))  # type: ignore[return-value]


@pytest.mark.parametrize(
    "method", [pytest.param(method, marks=[pytest.mark.slow] * (method == "draft-tree")) for method in METHODS]
)
def test_every_round_equals_the_eager_loops(model: Any, small: Any, method: str) -> None:
    eager, captured = both(model, method, small)
    rounds = lockstep(eager, captured, ragged(), 24, seed=3, warp=Warp.sampling(0.9), ends=[7, 11])
    assert rounds > 3
    first = rounds_of(captured)
    lockstep(eager, captured, ragged(), 17, seed=4, warp=Warp.sampling(0.9), ends=[7, 11])
    assert rounds_of(captured) == first, "the second call is served by the first one's plan"


@pytest.mark.slow
@pytest.mark.parametrize("method", ["suffix", "token-recycling"])
def test_bfloat16(model: Any, method: str) -> None:
    half = copy.deepcopy(model).bfloat16()
    lockstep(*both(half, method), ragged(), 24, seed=3, warp=Warp.sampling(0.9), ends=[7, 11])


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_plain_decoding_of_one_node(model: Any, temperature: float) -> None:
    lockstep(*both(model, "plain", shape="one"), ragged(), 20, seed=3, warp=Warp.sampling(temperature))


@pytest.mark.parametrize(
    "warp",
    [pytest.param(Warp.sampling(0), marks=pytest.mark.slow), Warp.sampling(1.3, top_k=20, top_p=0.9, min_p=0.01)],
    ids=["greedy", "all"],
)
def test_greedy_and_all_element_wise_processors(model: Any, warp: Warp) -> None:
    lockstep(*both(model, "prompt-lookup"), ragged(), 20, seed=3, warp=warp)


@pytest.mark.parametrize(
    "config",
    [
        pytest.param(MistralConfig(**WIDE, sliding_window=8), marks=pytest.mark.slow),  # Gemma has such layers, too
        Gemma3TextConfig(
            **WIDE, sliding_window=8, layer_types=["sliding_attention", "full_attention"], query_pre_attn_scalar=8
        ),
    ],
    ids=lambda config: config.model_type,
)
def test_windows(config: Any) -> None:
    lockstep(*both(random_model(config, gain=4.0), "token-recycling"), ragged(), 24, seed=3)


def test_noise_of_torch_in_generate(model: Any) -> None:
    call = dict(**ragged(), max_new_tokens=20, do_sample=True, top_k=0, temperature=0.9)
    outputs = []
    for compile in (None, True):
        torch.manual_seed(5)
        with mmspec.enable(model, "suffix", k=5, shape="one", compile=compile) as spec:
            outputs.append((model.generate(**call), torch.get_rng_state()))
            assert spec.report is not None and spec.report.compiled == bool(compile)
    assert torch.equal(outputs[0][0], outputs[1][0]) and torch.equal(outputs[0][1], outputs[1][1])
    torch.manual_seed(5)
    assert torch.equal(model.generate(**call), outputs[0][0])


def test_the_returned_cache_is_that_of_transformers_and_stays(model: Any) -> None:
    call = dict(max_new_tokens=9, do_sample=False, return_dict_in_generate=True)
    stock = model.generate(**ragged(), **call)
    with mmspec.enable(model, "suffix", k=5, shape="one", compile=True):
        first = model.generate(**ragged(), **call)
        model.generate(**ragged(), **call)  # the plan serves another call; the first one's results stay
    assert torch.equal(first.sequences, stock.sequences)
    for ours, theirs in zip(first.past_key_values.layers, stock.past_key_values.layers, strict=True):
        assert torch.allclose(ours.keys[0], theirs.keys[0], atol=1e-4)


def test_a_model_keeps_what_was_compiled_for_it(model: Any) -> None:
    call = dict(**ragged(), max_new_tokens=8, do_sample=True)
    kept = []
    for _ in range(2):
        with mmspec.enable(model, "prompt-lookup", k=5, seed=1, shape="one", compile=True):
            model.generate(**call)
        kept.append(kept_for(model))
        run = mmspec.custom_generate("suffix", k=5, seed=1, shape="one", compile=True)
        model.generate(**call, custom_generate=run)
        kept.append(kept_for(model))
    assert kept[0] and all(each == kept[0] for each in kept)
    assert not kept_for(copy.deepcopy(model))


@pytest.mark.slow
def test_two_calls_at_once_have_a_plan_each(model: Any) -> None:
    eager, captured = both(model, "prompt-lookup")
    calls = [(ragged(), 12), (ragged(), 12)]
    expected = [eager.generate(*call, seed=seed).units for seed, call in enumerate(calls)]
    states = [captured.start(*call, seed=seed) for seed, call in enumerate(calls)]
    while not all(state.finished for state in states):
        for state in states:
            if not state.finished:
                captured.advance(state)
    for units, state in zip(expected, states, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(units, state.output(), strict=True))
    rounds = [state.player.round for state in states]
    assert None is not rounds[0] is not rounds[1] is not None


def test_outputs_do_not_change_when_the_plan_serves_another_call(model: Any) -> None:
    captured = both(model, "prompt-lookup")[1]
    first = captured.generate(ragged(), 12, seed=0).units
    before = [units.clone() for units in first]
    captured.generate(ragged(), 12, seed=1)
    assert all(torch.equal(a, b) for a, b in zip(first, before, strict=True))


class Alternating:
    """Drafts trees of two forms in turns, right in every other node."""

    offers = frozenset({"tree"})
    needs: frozenset[str] = frozenset()

    def bind(self, target: Any) -> None: ...
    def width(self, k: int) -> int:
        return 4

    def start(self, state: Any, inputs: Any) -> Any:
        self.turn = 0

    def propose(self, state: Any, k: int, noise: Any) -> Draft:
        self.turn += 1
        units = (state.root[:, None] + torch.arange(4)) % 61
        return Draft.tree(units, [-1, 0, 0, 1] if self.turn % 2 else [-1, -1, 1, 1])

    def observe(self, state: Any, step: Any) -> None: ...


def test_trees_that_change_from_round_to_round(own: Any) -> None:
    target = TransformersTarget(own)
    eager, captured = (Decoder(target, Alternating(), k=3, shape="one", compile=c) for c in (None, True))
    lockstep(eager, captured, ragged(), 16, seed=3)
    assert {round.plan.index is None for round in captured.captures.pool.rounds} == {True, False}


def test_no_round_is_traced_twice(own: Any) -> None:
    """Lengths, drafts, budgets and rows that end change; the traced function does not."""
    captured = both(own, "prompt-lookup")[1]
    torch._dynamo.utils.counters.clear()
    for seed in range(3):
        captured.generate(ragged(), 40 - seed, seed=seed, warp=Warp.sampling(1.0), ends=[7, 11])
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1
    assert not torch._dynamo.utils.counters["graph_break"]


def test_a_pass_is_traced_once_for_all_laws_of_sampling(own: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a model that is not baked in, whatever the length; draft and what follows the pass are compiled anew."""
    monkeypatch.setattr(frozen, "MOST", 0)
    traced = []
    torch._dynamo.utils.counters.clear()
    for limit, warp in ((40, 0.0), (33, 1.0), (29, 0.7)):
        eager, captured = both(own, "prompt-lookup")
        prompts = {name: value[:, 40 - limit :] for name, value in ragged().items()}
        assert lockstep(eager, captured, prompts, limit, seed=3, warp=Warp.sampling(warp)) > 3
        traced.append(torch._dynamo.utils.counters["stats"]["unique_graphs"])
    assert traced == [3, 5, 7]


@pytest.mark.parametrize("dtype", [torch.float32, pytest.param(torch.bfloat16, marks=HALF)])
def test_packed_weights_are_found_when_a_round_runs(own: Any, monkeypatch: pytest.MonkeyPatch, dtype: Any) -> None:
    """What is made lazily, and whether it is still right, is no part of what is traced; nothing falls back."""
    monkeypatch.setattr(linear, "SMALLEST", 1)
    monkeypatch.setattr(frozen, "MOST", 0)
    monkeypatch.setenv("MMSPEC_PRODUCTS", "packed")
    asked, packed_of = list[Any](), linear.packed_of
    monkeypatch.setattr(linear, "packed_of", lambda weight: asked.append(weight) or packed_of(weight))
    eager, captured = both(own.to(dtype), "prompt-lookup")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        lockstep(eager, captured, ragged(), 12, seed=3)
        copies = [linear._packed[kernel.layer.weight] for kernel in linear.kernels(own)]
        asked.clear()
        lockstep(eager, captured, ragged(), 12, seed=4)
    assert {id(weight) for weight in asked} == {id(kernel.layer.weight) for kernel in linear.kernels(own)}
    assert copies == [linear._packed[kernel.layer.weight] for kernel in linear.kernels(own)]
    before = captured.generate(ragged(), 12, seed=5).units
    own.lm_head.weight.data.neg_()
    after = [decoder.generate(ragged(), 12, seed=5).units for decoder in (eager, captured)]
    assert all(map(torch.equal, *after)) and not all(map(torch.equal, before, after[0]))


def test_another_prompt_length_of_the_same_bucket_needs_no_other_plan(own: Any) -> None:
    eager, captured = both(own, "suffix")
    for length in (3, 11, 20):
        inputs = {name: value[:1, :length] for name, value in ragged().items()}
        lockstep(eager, captured, inputs, 12, seed=length)
    assert len(captured.captures.pool.rounds) == 1


def test_processors_that_read_the_history_run_eagerly(model: Any) -> None:
    call = dict(**ragged(), max_new_tokens=12, do_sample=False, repetition_penalty=1.3)
    with mmspec.enable(model, "suffix", k=5, shape="one", compile=True) as spec:
        with pytest.warns(UserWarning, match="runs eagerly: RepetitionPenaltyLogitsProcessor read the history"):
            found = model.generate(**call)
        assert spec.report is not None and not spec.report.compiled
        model.generate(**{**call, "repetition_penalty": 1.0})
        assert spec.report.compiled, "other calls are captured"
    assert torch.equal(found, model.generate(**call))


def test_a_model_that_cannot_be_traced_runs_eagerly(own: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    class Watched(torch.nn.Module):
        """A layer that reads a number on the host."""

        def __init__(self, inner: Any) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.inner(x) * (1 if float(x.sum()) < 1e30 else 2)

    own.lm_head = Watched(own.lm_head)
    eager, captured = both(own, "prompt-lookup")
    expected = eager.generate(ragged(), 12, seed=1).units
    with pytest.warns(UserWarning, match="rounds are not captured, and run eagerly"):
        output = captured.generate(ragged(), 12, seed=1)
    assert not output.report.compiled and all(torch.equal(a, b) for a, b in zip(expected, output.units, strict=True))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        captured.generate(ragged(), 12, seed=1)  # one warning a decoder
        again = decoder_for(own, "prompt-lookup", compile=True, shape="one", **METHODS["prompt-lookup"])
        again.generate(ragged(), 12, seed=1)  # and the model remembers
    monkeypatch.setenv("MMSPEC_STRICT", "1")
    forget(own)
    with pytest.raises(torch._dynamo.exc.TorchDynamoException):
        both(own, "prompt-lookup")[1].generate(ragged(), 12, seed=1)


def test_a_captured_pass_with_wrong_scores_is_not_used(own: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mutant reads the mask of another length."""
    right = BufferCache.open

    def wrong(self: Any, first: int, nodes: int) -> Any:
        self.length.add_(1)
        return right(self, first, nodes)

    monkeypatch.setattr(BufferCache, "open", wrong)
    with pytest.warns(UserWarning, match="the captured pass differs from the eager one by"):
        output = both(own, "prompt-lookup")[1].generate(ragged(), 12, seed=1)
    assert not output.report.compiled


def test_out_of_memory_frees_the_plans_and_runs_eagerly(own: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: Any) -> None:
        raise torch.OutOfMemoryError("there is no memory for the graph")

    monkeypatch.setattr(CapturedRound, "warm", full)
    eager, captured = both(own, "prompt-lookup")
    with pytest.warns(UserWarning, match="run eagerly: OutOfMemoryError: there is no memory for the graph"):
        output = captured.generate(ragged(), 12, seed=1)
    assert not captured.captures.pool.rounds and not output.report.compiled
    expected = eager.generate(ragged(), 12, seed=1).units
    assert all(torch.equal(a, b) for a, b in zip(expected, output.units, strict=True))


@pytest.mark.parametrize("compiled", [pytest.param(True, marks=pytest.mark.slow), False])
def test_auto_keeps_the_faster(own: Any, monkeypatch: pytest.MonkeyPatch, compiled: bool) -> None:
    left, real = [2.0, 1.0] if compiled else [1.0, 2.0], check.timed
    monkeypatch.setattr(check, "timed", lambda run: (left.pop(0), real(run)[1]))
    decoder = decoder_for(own, "prompt-lookup", k=4, compile="auto")
    for _ in range(2):
        assert decoder.generate(ragged(), 8, seed=1).report.compiled == compiled


def test_bad_arguments(model: Any) -> None:
    with pytest.raises(ValueError, match="auto"):
        mmspec.enable(model, "plain", compile="aut")
    with pytest.raises(ValueError, match="compile"):
        mmspec.enable(model, "plain", compile=2)
    with pytest.raises(ValueError, match="compiled rounds have one shape"):
        mmspec.enable(model, "plain", shape="any", compile=True)


def test_what_can_have_no_shape_says_so(model: Any, small: Any) -> None:
    """A target without passes of one width; a lossless rule has them where rounds are compiled, and nowhere else."""
    with pytest.raises(ValueError, match="under RecursiveRejection the output depends on the drafts"):
        decoder_for(model, "rsd", drafter=small, k=2, shape="one")
    with pytest.warns(UserWarning, match="rounds are not compiled: HistoryTarget cannot run all passes"):
        eager = Decoder(HistoryTarget.random(4, seed=0), shape=None, compile=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        again = rebound(eager, 2)  # as pipelines do when they are moved
    assert again.compile is False and again.generate(torch.tensor([[0, 1]]), 4).report.emitted == 4


def test_a_call_that_loses_its_round_loses_the_promise(own: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second tree cannot be captured any more: no plain decoding has such rounds."""
    made, real = [], CapturedRound.warm

    def once(self: Any) -> None:
        made.append(self)
        if len(made) > 1:
            raise torch.OutOfMemoryError("none left")
        real(self)

    monkeypatch.setattr(CapturedRound, "warm", once)
    decoder = Decoder(TransformersTarget(own), Alternating(), k=3, shape="one", compile=True)
    with pytest.warns(UserWarning, match="none left"):
        output = decoder.generate(ragged(), 12, seed=1)
    expected = Decoder(decoder.target, shape=5).generate(ragged(), 12, seed=1)
    assert all(torch.equal(a, b) for a, b in zip(output.units, expected.units, strict=True))
    assert not output.report.compiled and "near-ties" in output.report.shape


def test_compiled_texts_equal_the_compiled_plain(inductor: None) -> None:
    half = random_model(LlamaConfig(**{**WIDE, "num_hidden_layers": 1}), gain=4.0).to(torch.bfloat16)
    compiled = decoder_for(half, "prompt-lookup", k=5, compile=True)
    plain = decoder_for(half, "plain", shape=6, compile=True)
    for seed in range(3):
        found, expected = (d.generate(ragged(), 24, seed=seed) for d in (compiled, plain))
        assert found.report.compiled and expected.report.compiled
        assert all(torch.equal(a, b) for a, b in zip(found.units, expected.units, strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("method", [m for m in METHODS if m != "plain"])
def test_compiled_texts_of_every_method_equal_the_compiled_plain(
    small: Any, inductor: None, method: str, dtype: torch.dtype
) -> None:
    half = random_model(LlamaConfig(**WIDE), gain=4.0).to(dtype)
    compiled = both(half, method, small.to(dtype))[1]
    plain = decoder_for(half, "plain", shape=compiled.one_width(), compile=True)
    for seed in range(8):
        found, expected = (d.generate(ragged(), 48, seed=seed, warp=Warp.sampling(0.9)) for d in (compiled, plain))
        assert found.report.compiled and expected.report.compiled
        assert all(torch.equal(a, b) for a, b in zip(found.units, expected.units, strict=True))


@pytest.mark.slow
def test_a_thousand_rounds_compile_once(model: Any, inductor: None) -> None:
    forget(model)
    torch._dynamo.utils.counters.clear()
    captured = both(model, "prompt-lookup")[1]
    rounds = 0
    for seed in range(200):
        rounds += captured.generate(ragged(), 30 - seed % 7, seed=seed, warp=Warp.sampling(1.0), ends=[7]).report.rounds
        if rounds >= 1000:
            break
    assert rounds >= 1000 and torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1
