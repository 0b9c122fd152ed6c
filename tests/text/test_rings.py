"""Layers with a window keep their latest slots in a ring: less memory, and the same scores, texts and caches."""

import dataclasses
import inspect
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import DynamicCache

import mmspec
import mmspec.hosts.slot_layer as slot_layer
from mmspec.compare.equality import stock
from mmspec.core.decoder import Decoder
from mmspec.core.drafters.draft_model import DraftModel
from mmspec.core.tree import TreeIndex
from mmspec.core.types import Draft
from mmspec.core.warp import Warp
from mmspec.hosts import prefill
from mmspec.hosts.budget import BudgetedTarget
from mmspec.hosts.masks import PassGeometry
from mmspec.hosts.slot_cache import SlotCache
from mmspec.hosts.slot_layer import RingLayer
from mmspec.hosts.target import TransformersTarget
from tests.support.zoo import ARCHITECTURES, build, noisy

WINDOW, VOCAB = 12, 120
FAMILIES = ["mistral", "gemma2", "gemma3n_text", "llama4_text", "gpt_oss"]
"""A window in every layer; in some, with soft-caps; with shared keys; chunks; with attention sinks."""

MODELS = [
    pytest.param(name, free, marks=[] if name in FAMILIES and free != (name == "gemma2") else [pytest.mark.slow])
    for free in (True, False)
    for name, recipe in ARCHITECTURES.items()
    if recipe.config.get("sliding_window") or recipe.config.get("attention_chunk_size")
]


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Rings that short texts reach around, and a prefill in several passes."""
    monkeypatch.setattr(slot_layer, "BLOCK", 8)
    monkeypatch.setattr(prefill, "CHUNK", 9)
    yield


def rows_of(inputs: dict[str, Tensor]) -> list[list[int]]:
    pairs = zip(inputs["input_ids"], inputs["attention_mask"].bool(), strict=True)
    return [ids[mask].tolist() for ids, mask in pairs]


@torch.no_grad()
def last_scores(model: Any, ids: list[int]) -> Tensor:
    """Logits after a row by itself, without a cache: `[vocab]`."""
    takes = "position_ids" in inspect.signature(type(model).forward).parameters
    more = {"position_ids": torch.arange(len(ids))[None]} if takes else {}
    return model(input_ids=torch.tensor([ids]), use_cache=False, **more).logits[0, -1]


def ring_sizes(slots: SlotCache) -> set[int]:
    return {layer.keys.shape[2] for layer in slots.owning if isinstance(layer, RingLayer)}


def path_to(parents: list[int], node: int) -> list[int]:
    """The drafted nodes from the root (exclusive) to a node; -1 is the root."""
    return [] if node < 0 else [*path_to(parents, parents[node]), node]


def decode(adapter: TransformersTarget, inputs: dict[str, Tensor], rounds: int, width: int = 6) -> tuple[Any, Any]:
    """Rounds of random trees and chains, each with random commits: the call's cache, and the units of every row."""
    rng, rows = random.Random(0), rows_of(inputs)
    cache = adapter.start(inputs, 250, width).cache
    for _ in range(rounds):
        root, k = torch.randint(3, VOCAB, (3,)), rng.randint(1, width - 1)
        chain = rng.random() < 0.3
        parents = [i - 1 if chain else rng.randint(-1, i - 1) for i in range(k)]
        units = torch.randint(3, VOCAB, (3, k))
        draft = Draft.tree(units, parents).rooted(root, torch.full((3,), 99))
        adapter.verify(cache, draft)
        paths = [path_to(parents, rng.randint(-1, k - 1)) for _ in rows]
        count = [rng.choice([0, len(path) + 1, len(path) + 1]) for path in paths]
        deep = draft.index.deepest
        path = torch.tensor([[node + 1 for node in each] + [-1] * (deep - len(each)) for each in paths])
        adapter.commit(cache, path, torch.tensor(count))
        for b, each in enumerate(paths):
            rows[b] += [int(root[b]), *(int(units[b, node]) for node in each)][: count[b]]
    return cache, rows


def scored_as_alone(adapter: TransformersTarget, cache: Any, rows: list[list[int]]) -> None:
    """A tree behind the rows has the scores of its paths alone.

    A router of experts may be undecided in the last bit somewhere in a row; a wrong ring shows in all of them.
    """
    parents, root = [-1, -1, 0, 0, 2], torch.randint(3, VOCAB, (3,))
    units = torch.randint(3, VOCAB, (3, 5))
    logits = adapter.verify(cache, Draft.tree(units, parents).rooted(root, torch.full((3,), 99))).logits
    assert logits is not None
    off = set()
    for b, row in enumerate(rows):
        for node in (-1, 1, 4):
            path = [int(units[b, each]) for each in path_to(parents, node)]
            right = last_scores(adapter.model, [*row, int(root[b]), *path])
            far = (logits[b, node + 1] - right).abs().max() >= 2e-5 * right.abs().max().clamp(min=1)
            off |= {b} if far else set()
    undecided = any("router" in name or "experts" in name for name, _ in adapter.model.named_modules())
    assert len(off) <= undecided, off


@pytest.mark.parametrize(("name", "free"), MODELS)
def test_a_ring_gives_the_scores_of_whole_rows(
    name: str, free: bool, prompts: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ragged rows, trees and chains, several times around the ring; also where lengths are not read, as on a GPU."""
    begin = SlotCache.__init__

    def begin_so(self: SlotCache, *given: Any) -> None:
        begin(self, *given)
        self.free_to_read = free

    monkeypatch.setattr(SlotCache, "__init__", begin_so)
    adapter, inputs = TransformersTarget(build(name)), prompts(3)
    assert adapter.passes.rings
    inputs["input_ids"] = inputs["input_ids"].clamp(max=VOCAB - 1)
    torch.manual_seed(1)
    cache, rows = decode(adapter, inputs, 60)
    assert cache.slots.rings == {WINDOW: 40} and ring_sizes(cache.slots) == {40}
    assert max(map(len, rows)) > 80 < 3 * min(map(len, rows))
    scored_as_alone(adapter, cache, rows)


def test_a_prompt_longer_than_the_ring_in_rows_of_any_length() -> None:
    adapter = TransformersTarget(build("mistral"))
    ids = torch.randint(3, VOCAB, (3, 70), generator=torch.Generator().manual_seed(2))
    mask = torch.arange(70) >= 70 - torch.tensor([70, 4, 33])[:, None]
    inputs = {"input_ids": ids * mask, "attention_mask": mask.long()}
    started = adapter.start(inputs, 20, 6)
    assert ring_sizes(started.cache.slots) == {40}
    for b, row in enumerate(rows_of(inputs)):
        right = last_scores(adapter.model, row)
        assert started.output.logits is not None
        assert torch.allclose(started.output.logits[b, 0], right, atol=2e-5 * float(right.abs().max()))
    scored_as_alone(adapter, started.cache, rows_of(inputs))


def test_a_round_can_be_taken_back_and_a_text_cannot(prompts: Callable) -> None:
    adapter, inputs = TransformersTarget(build("gemma2")), prompts(3)
    inputs["input_ids"] = inputs["input_ids"].clamp(max=VOCAB - 1)
    cache, rows = decode(adapter, inputs, 60)
    shorter = [row[:-6] for row in rows]
    adapter.truncate(cache, torch.tensor([len(row) for row in shorter]))
    scored_as_alone(adapter, cache, shorter)
    with pytest.raises(ValueError, match=r"a call cannot go back to .* window of 12 keep 40 units"):
        adapter.truncate(cache, torch.tensor([len(row) - 30 for row in rows]))


def test_long_calls_hold_the_window_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """4,096 units with a window of 256: its layers hold the window, a chunk of the prefill and a block."""
    monkeypatch.undo()
    recipe = ARCHITECTURES["ministral"]
    sizes = dict(recipe.config, sliding_window=256, max_position_embeddings=4200)
    model = dataclasses.replace(recipe, config=sizes).model()
    ids = torch.randint(3, VOCAB, (1, 3800), generator=torch.Generator().manual_seed(0))
    drafter = DraftModel(TransformersTarget(model, drafting=True))
    state = Decoder(TransformersTarget(model), drafter, k=4).start(ids, 296, warp=Warp(sample=False))
    for cache in (state.cache.slots, state.memory.cache.slots):
        held = [layer.keys.shape[2] for layer in cache.layers]
        assert held[0] == held[2] <= 256 + prefill.CHUNK + slot_layer.BLOCK and held[1] == held[3] >= 3800
        once = sum(t.untyped_storage().nbytes() for t in (cache.layers[0].keys, cache.layers[0].values))
        assert once <= (256 + prefill.CHUNK + slot_layer.BLOCK) * 2 * 2 * 16 * 4  # two heads of 16, keys and values


def test_windows_as_long_as_the_call_keep_what_they_kept(prompts: Callable) -> None:
    target = TransformersTarget(build("mistral"))
    cache = target.start(prompts(1), 10, 4).cache
    assert not cache.slots.rings and not any(isinstance(layer, RingLayer) for layer in cache.slots.layers)
    BudgetedTarget(target)  # copies the first slots of a call, too
    assert not target.start(prompts(1), 200, 4).cache.slots.rings


def test_captured_rounds_of_windowed_models_are_as_few_as_of_others() -> None:
    """Compiling takes minutes: one round serves all lengths up to a power of two, also where layers have a window."""
    shapes = []
    for name in ("mistral", "gemma3_text"):
        recipe = ARCHITECTURES[name]
        sizes = dict(recipe.config, max_position_embeddings=4096, num_hidden_layers=2)
        sizes |= {"layer_types": sizes["layer_types"][:2]} if "layer_types" in sizes else {}
        target = TransformersTarget(dataclasses.replace(recipe, config=sizes).model())
        lengths = [(3, 28), (60, 28), (130, 28), (130, 200), (450, 28), (600, 28), (800, 200), (900, 200)]
        calls = [target.start_fixed(torch.full((1, prompt), 3), new, 11).cache for prompt, new in lengths]
        shapes.append(len({target.capture_key(call) for call in calls}))
    assert shapes == [4, 4]


METHODS: dict[str, dict[str, Any]] = {
    "plain": {},
    "prompt-lookup": {"k": 5},
    "draft-model": {"k": 4},
    "draft-tree": {"k": 3, "nodes": 6},
}


FAST = [("prompt-lookup", "with windows"), ("draft-tree", "without")]


@pytest.mark.parametrize(
    ("method", "own"),
    [
        pytest.param(method, own, marks=[] if (method, own) in FAST else [pytest.mark.slow])
        for method in METHODS
        for own in ("none", "with windows", "without")
    ],
)
@pytest.mark.compiled
def test_texts_and_caches_are_those_of_transformers(method: str, own: str, prompts: Callable) -> None:
    """Two turns; rows end early, so that the returned cache is completed by passes longer than a draft."""
    model, inputs = build("gemma2"), prompts(3)
    drafter = {"drafter": noisy(model, 0.05)} if method.startswith("draft") else {}
    make = {"none": lambda: None, "with windows": lambda: DynamicCache(config=model.config), "without": DynamicCache}
    longest, *others = (row[14:].tolist() for row in stock(model, inputs, 0, **call(60)).ids)
    ends = [next(unit for unit in row[3:] if unit not in longest) for row in others]

    def talk() -> tuple[Tensor, Any]:
        given = {} if own == "none" else {"past_key_values": make[own]()}
        first = model.generate(**inputs, **call(60), **given, eos_token_id=ends, return_dict_in_generate=True)
        ids = torch.cat([first.sequences, torch.full((3, 2), 9)], 1)
        mask = torch.cat([inputs["attention_mask"], torch.ones(3, ids.shape[1] - 14).long()], 1)
        more = {"input_ids": ids, "attention_mask": mask, "past_key_values": first.past_key_values}
        second = model.generate(**more, **call(50), return_dict_in_generate=True)
        return second.sequences, second.past_key_values

    torch.manual_seed(0)
    right, kept = talk()
    assert int((right[1:, 14:74] != 0).sum(1).max()) < 25, "rows end late"
    with mmspec.enable(model, method, **METHODS[method], **drafter) as spec:
        torch.manual_seed(0)
        mine, cache = talk()
        assert spec.report is not None and spec.report.rounds
    assert torch.equal(mine, right)
    lengths = kept.get_seq_length() - torch.tensor([0, 9, 3])
    for layer, expected in zip(cache.layers, kept.layers, strict=True):
        assert layer.keys.shape == expected.keys.shape and layer.get_seq_length() == expected.get_seq_length()
        for b, length in enumerate(lengths):  # keys of padding differ
            assert torch.allclose(layer.keys[b, :, -length:], expected.keys[b, :, -length:], atol=1e-4)
            assert torch.allclose(layer.values[b, :, -length:], expected.values[b, :, -length:], atol=1e-4)


def call(tokens: int) -> dict[str, Any]:
    return dict(do_sample=True, top_k=0, temperature=0.8, max_new_tokens=tokens, pad_token_id=0)


def test_one_shape_keeps_its_promise_around_a_ring(prompts: Callable) -> None:
    """In bfloat16, to the bit: plain decoding at the width of the drafts."""
    model = build("gemma3_text").to(torch.bfloat16)
    inputs, drafter = prompts(3), DraftModel(TransformersTarget(noisy(model, 0.05), drafting=True))
    drafts = Decoder(TransformersTarget(model), drafter, k=4, shape="one")
    plain = Decoder(TransformersTarget(model), shape=5)
    mine, right = (each.generate(inputs, 60, seed=3).units for each in (drafts, plain))
    assert all(torch.equal(a, b) for a, b in zip(mine, right, strict=True))


def test_places_of_a_ring_are_the_slots_that_the_full_mask_sees() -> None:
    length, ring, window, visible = torch.tensor([3, 17, 30, 64]), 24, 11, 72
    index, holes = TreeIndex.static([-1, 0, 0, 1, 1, 3]), torch.zeros(4, visible, dtype=torch.bool)
    holes[2, 25] = True
    whole = PassGeometry(length, index.ancestor, index.depth, visible, False, holes, False, {window: ring})

    def pattern(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return key > query - window

    assert whole.around(None) is whole and whole.around(99) is whole and whole.around(window) is whole.around(window)
    full, around = whole.within(pattern), whole.around(window).within(pattern)
    assert full.shape == (4, 1, 6, visible) and around.shape == (4, 1, 6, ring)
    for row in range(4):
        for node in range(6):
            seen = sorted(int(slot) % ring for slot in full[row, 0, node].nonzero())
            assert seen == around[row, 0, node].nonzero().flatten().tolist()
            assert len(set(seen)) == len(seen) and (row != 2 or 1 not in seen)
