"""SpecMemo: bytes of caches and passes, which stay within the budget, rounds by hand, and the text."""

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import mmspec
from mmspec.compare.equality import assert_same, stock
from mmspec.core.decoder import Decoder
from mmspec.core.warp import Warp
from mmspec.hosts.linear import laid_out
from mmspec.hosts.loading import load_model
from mmspec.hosts.memory import Cost, cost, weights
from mmspec.hosts.passes import Passes
from mmspec.hosts.self_check import checked
from mmspec.hosts.target import TransformersTarget
from mmspec.testing import tiny_models
from mmspec_zoo.specmemo import SpecMemo, SpecMemoOptions
from tests.support.zoo import build, noisy
from tools.bench import memory

SLOW = ("gemma2", "gpt_oss", "gemma3n_text", "qwen3_moe", "deepseek_v3")
NAMES = ["llama", "gpt2", *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)]
"""Grouped queries and single ones; with windows in some layers, sinks, shared and latent keys."""
TREE: dict[str, Any] = {"form": "branching", "branching": (2, 2, 2)}


def prompts(batch: int = 3, longest: int = 40) -> dict[str, Tensor]:
    """Rows of several lengths, padded on the left; two of them are equal."""
    lengths = torch.tensor([longest, longest - 17, longest - 17])[:batch, None]
    ids = torch.randint(1, 7, (2, 10), generator=torch.Generator().manual_seed(0)).repeat(1, -(-longest // 10))
    mask = torch.arange(longest) >= longest - lengths
    return {"input_ids": ids[[0, 1, 1][:batch], :longest] * mask, "attention_mask": mask.long()}


MADE = (torch.ops.aten.new_zeros.default, torch.ops.aten.index.Tensor)
"""What makes slots, and copies those of a prompt; what a pass computes may have their shape, too."""


class Allocations(TorchDispatchMode):
    """The most bytes of key slots that were alive at once, whoever made them: of tensors `[rows, heads, slots, width]`.

    Args:
        shapes: Heads and width of keys or values, of every model; slots are whole blocks of 64.
    """

    def __init__(self, shapes: set[tuple[int, int]]) -> None:
        super().__init__()
        self.shapes, self.most = shapes, 0
        self.alive: dict[int, tuple[weakref.ref[Tensor], int]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        made = func in MADE and result.dim() == 4 and result.shape[2] % 64 == 0
        if made and (result.shape[1], result.shape[3]) in self.shapes:
            self.alive[id(result)] = weakref.ref(result), result.nbytes
        self.alive = {key: (ref, size) for key, (ref, size) in self.alive.items() if ref() is not None}
        self.most = max(self.most, sum(size for _, size in self.alive.values()))
        return result


@contextmanager
def counted(*models: Any) -> Iterator[Allocations]:
    """The allocations of key slots inside, where models keep keys as they are."""
    configs = [model.config for model in models]
    with Allocations({(config.num_key_value_heads, config.head_dim) for config in configs}) as allocations:
        yield allocations


OWN = 16_608 + 40 * (480 + 16 * 64)
"""Bytes of the weights of the tiny Llama, which is both models, and of reading the prompt: of each of its 40 units,
three results of 16 + 24 numbers, and 16 bytes for each of 64 slots.
"""


def passes(model: Any) -> Passes:
    return checked(TransformersTarget(model).model_info)


def floor(model: Any, small: Any, rows: int, longest: int, new: int) -> int:
    """Bytes of plain decoding beside a draft model."""
    price, slots = cost(passes(model)), longest + new + 1
    work = max(price.reading(rows, longest), price.work(rows, 1, slots))
    return weights(passes(model), passes(small)) + work + price.bytes(rows, slots)


def started(budget: int, k: int = 3, limit: int = 20, batch: int = 1, **options: Any) -> tuple[Decoder, Any]:
    model = tiny_models.llama()
    drafter = SpecMemo(SpecMemoOptions(model=model, memory_budget=budget, **{**TREE, **options}))
    decoder = Decoder(TransformersTarget(model), drafter, k=k)
    return decoder, decoder.start(prompts(batch), limit, warp=Warp.sampling(temperature=0))


def test_rounds_by_hand() -> None:
    """A slot costs 2 layers · keys and values · 1 head · 8 wide · 4 bytes = 128 bytes, in both models.

    The prompt has 40 units and 20 are wanted. The target needs 61 slots, one block: 8,192 bytes. The draft model needs
    76, two blocks: 16,384 bytes. A draft of 3 levels with two children each has 2 + 4 + 8 nodes, of 2 levels 6, and
    with the root they must fit behind the text so far, which has 39 + e units when e are emitted: 3 levels while
    39 + e + 15 ≤ 64, so for e ≤ 10, and 2 levels while 39 + e + 7 ≤ 64. The draft model is the target, so that every
    round emits its levels and one more. With a second block for the target all rounds have 3 levels, but the last one,
    in which 3 units are left. Reading the prompt takes more than any other pass.
    """
    shorter, whole = [(1, 14), (5, 14), (9, 14), (13, 6), (16, 6)], [(1, 14), (5, 14), (9, 14), (13, 14), (17, 6)]
    for budget, expected in ((OWN + 24_576, shorter), (OWN + 32_768, whole)):
        decoder, state = started(budget)
        found = []
        for _ in range(5):
            before = state.host.emitted[0]
            decoder.advance(state)
            found.append((before, state.step.draft.nodes - 1))
        assert found == expected and state.report.memory_bytes == budget == OWN + state.report.cache_bytes


def test_one_byte_less_has_no_drafts_and_one_block_less_is_refused() -> None:
    decoder, state = started(OWN + 24_575)
    decoder.advance(state)
    assert state.memory is None and state.step.draft.nodes == 1
    assert state.report.cache_bytes == 8_192 and not state.report.faults
    assert started(OWN + 8_192)[1].report.memory_bytes == OWN + 8_192 == 84_960
    says = "needs 84,960 bytes: 16,608 of weights, 60,160 of a pass and 8,192 of the target's cache, which are 1 rows "
    says += (
        "of 64 slots, behind prompts of up to 40 units; memory_budget is 84,959 bytes, and has no room behind them: "
    )
    with pytest.raises(ValueError, match=says + "0 slots fit"):
        started(OWN + 8_191)
    with pytest.raises(ValueError, match=r"16,384 of the target's cache.* 1 rows of 128 slots.* room for 23 new units"):
        started(OWN + 8_192, limit=24)


def test_smaller_budgets_have_smaller_trees() -> None:
    """Scores of 7 units are less than what a layer computes, 480 bytes. The target has 128 slots, for 60 units, 64
    nodes and their root, and so has the draft model: 16,384 bytes each. A node takes 480 + 16 · 128 bytes.
    """
    for nodes in (64, 32):
        budget = 16_608 + 2 * 16_384 + (nodes + 1) * 2_528
        less = budget - nodes // 2 * 2_528
        for given, expected, counted in ((budget, nodes, budget), (budget - 1, nodes // 2, less)):
            decoder, state = started(given, k=8, form="rerank", nodes=64, width=6)
            decoder.advance(state)
            assert state.memory.shape.nodes == expected and state.step.draft.nodes - 1 <= expected
            assert state.report.memory_bytes == max(counted, OWN + 2 * 16_384)


@pytest.mark.parametrize(("rows", "longest", "temperature"), [(1, 64, 0.0), (2, 600, 0.0), (2, 200, 1.0)])
def test_what_is_counted_is_what_torch_allocates(rows: int, longest: int, temperature: float) -> None:
    """Within a twentieth: weights, packed copies of them, and the most that a call has at once."""
    large, small = (load_model(f"mmspec/text-{size}", "cpu") for size in ("14m", "1m"))
    ids = torch.randint(5, 4000, (rows, longest), generator=torch.Generator().manual_seed(0))
    drafter = SpecMemo(SpecMemoOptions(model=small, memory_budget=2**30, nodes=64))
    decoder = Decoder(TransformersTarget(large), drafter, k=6)

    def call() -> Any:
        return decoder.generate(ids, 24, warp=Warp.sampling(temperature=temperature)).report.memory_bytes

    counted = call()
    laid = sum(map(laid_out, (large, small)))
    assert (
        abs(sum(map(memory.weights, (large, small))) + laid + memory.peak_growth(call, "cpu") - counted) < counted / 20
    )


def test_layers_with_a_window_cost_their_ring() -> None:
    """Two layers of 10 bytes, one with a window of 32 whose ring has 64 places; two rows of 130 slots, so 192."""
    price = Cost(((10, None), (10, 32)))
    assert price.bytes(2, 130) == 2 * 20 * 192
    assert price.bytes(2, 130, {32: 64}) == 2 * (10 * 192 + 10 * 64)


@pytest.mark.parametrize("batch", [pytest.param(1, marks=pytest.mark.slow), 3])
def test_no_allocation_exceeds_the_budget(batch: int) -> None:
    """Neither of a long prompt, nor of equal ones, nor while the text becomes longer; without a budget it does."""
    model = build("llama")
    small, given = noisy(model, 0.1), prompts(batch, longest=150)
    call, least = dict(max_new_tokens=60, do_sample=False), floor(model, small, batch, 150, 60)
    expected = stock(model, given, None, **call)
    for budget in (least, 2 * least):
        with mmspec.enable(model, "specmemo", drafter=small, memory_budget=budget, nodes=20, k=4) as spec:
            model.generate(**given, max_new_tokens=2)  # what is found out once is no part of a call
            with counted(model) as allocations:
                ids = model.generate(**given, **call)
            assert_same(ids, expected)
            assert allocations.most == spec.report.cache_bytes < spec.report.memory_bytes <= budget
            assert bool(spec.report.drafted) == (budget > least)
    with mmspec.enable(model, "draft-tree", drafter=small, nodes=20, k=4), counted(model) as allocations:
        model.generate(**given, **call)
    assert allocations.most > 2 * cost(passes(model)).bytes(batch, 211), (
        "caches that grow hold their old slots and the new ones"
    )


@pytest.mark.thinned(1)
@pytest.mark.parametrize("sampling", [{"do_sample": False}, {"do_sample": True, "temperature": 0.8}], ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_equal_to_unmodified_generate(name: str, sampling: dict[str, Any]) -> None:
    """With a budget that is ample, one that shortens drafts, and one without room for any."""
    model, call = build(name), dict(max_new_tokens=20, **sampling)
    small, given = noisy(model, 0.1), prompts()
    expected = stock(model, given, 0, **call)
    least, drafted = floor(model, small, 3, 40, 20), []
    for budget in (2**30, least + cost(passes(small)).bytes(3, 76), least):
        with mmspec.enable(model, "specmemo", drafter=small, memory_budget=budget, k=4, nodes=20) as spec:
            torch.manual_seed(0)
            assert_same(model.generate(**given, **call), expected, torch.get_rng_state())
            assert spec.report.memory_bytes <= budget and not spec.report.faults
            drafted.append(spec.report.drafted)
    assert drafted[0] > drafted[1] > drafted[2] == 0


def test_under_guidance_both_halves_count() -> None:
    model, given = build("llama"), {"input_ids": prompts(1)["input_ids"]}
    call = dict(max_new_tokens=12, do_sample=True, guidance_scale=1.5)
    expected = stock(model, given, 0, **call)
    budget = 2 * floor(model, model, 2, 40, 40)
    with mmspec.enable(model, "specmemo", drafter=noisy(model, 0.1), memory_budget=budget, k=3, nodes=8) as spec:
        torch.manual_seed(0)
        with counted(model) as allocations:
            assert_same(model.generate(**given, **call), expected, torch.get_rng_state())
        assert spec.report.drafted and allocations.most <= budget


def test_one_shape_needs_room_for_whole_drafts() -> None:
    model = build("llama")
    with mmspec.enable(model, "specmemo", drafter=model, memory_budget="1MB", shape="one", k=3, nodes=8) as spec:
        model.generate(**prompts(1), max_new_tokens=20)
        assert spec.report.width == 9 and spec.report.cache_bytes <= 10**6
    least = floor(model, model, 1, 40, 20)
    says = "with drafts of 9 nodes in one shape, a call needs"
    with (
        mmspec.enable(model, "specmemo", drafter=model, memory_budget=least, shape="one", k=3, nodes=8),
        pytest.raises(ValueError, match=says),
    ):
        model.generate(**prompts(1), max_new_tokens=20)


def test_a_cost_is_read_again_after_a_cast() -> None:
    model = build("llama")
    whole = cost(passes(model))
    assert not [size for size, _ in whole.layers if size % 4]
    model.bfloat16()
    half = cost(passes(model))
    assert half.bytes(1, 64) * 2 == whole.bytes(1, 64)


def test_refusals() -> None:
    model = build("llama")
    with pytest.raises(ValueError, match="specmemo needs the bytes that a call may have: memory_budget=2GiB"):
        mmspec.enable(model, "specmemo", drafter=model)
    for wrong in ("2 pounds", "-1", -1, 0):
        with pytest.raises(ValueError, match="memory_budget"):
            mmspec.enable(model, "specmemo", drafter=model, memory_budget=wrong)
    with pytest.raises(ValueError, match=r"a memory budget counts keys; Mamba.* keeps recurrent states"):
        mmspec.enable(model, "specmemo", drafter=build("mamba2"), memory_budget="1GB")
    embeds = model.get_input_embeddings()(prompts(1)["input_ids"])
    with (
        mmspec.enable(model, "specmemo", drafter=model, memory_budget="1GB"),
        pytest.raises(ValueError, match="a memory budget goes with prompts of ids and padding alone"),
    ):
        model.generate(inputs_embeds=embeds, max_new_tokens=4)
