"""TriForce: which chunks the middle level keeps, two rounds by hand, and the text, which it never changes."""

from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.cache_utils import DynamicSlidingWindowLayer

import mmspec
from mmspec.compare.equality import assert_same, stock
from mmspec.core.decoder import Decoder
from mmspec.core.tree import TreeIndex
from mmspec.core.types import Draft
from mmspec.core.warp import Warp
from mmspec.hosts import budget as hosts_budget
from mmspec.hosts.budget import BudgetedTarget, Retrieval, last_queries, ranked
from mmspec.hosts.target import TransformersTarget
from mmspec.hosts.tree_op import Branches
from mmspec_text.drafters.cascade import Cascade, CascadeOptions
from mmspec_text.drafters.streamed import Streamed, latest
from tests.support.zoo import build

SLOW = ("qwen3_moe", "gemma2", "gpt_oss", "gemma3n_text", "cohere", "deepseek_v3")
NAMES = ["llama", "gpt2", *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)]
"""Grouped queries and single ones; with windows in some layers, sinks, shared keys; one that retrieves nothing."""


def prompts(batch: int = 3) -> dict[str, Tensor]:
    """Rows of several lengths, longer than the budgets here but one, padded on the left."""
    ids = torch.randint(3, 131, (batch, 20), generator=torch.Generator().manual_seed(0)).repeat(1, 3)
    mask = torch.arange(60) >= 60 - torch.tensor([60, 21, 41])[:batch, None]
    return {"input_ids": ids * mask, "attention_mask": mask.long()}


def test_chunks_by_hand() -> None:
    """Two key heads with two queries each, chunks of two slots, nine committed units, a budget of six.

    The mean queries are (1, 0) and (0, 1). Means of the keys, by chunk: (9, 0) (1, 4) (3, 2) (5, 1). Chunk 0 comes
    first for both heads; then 3, 2, 1 for the first head, and 1, 2, 3 for the second. Unit 8 is in no chunk.

    Behind nine units there are five places for chunks: the third chunk of each head loses its second slot. Behind
    twelve there are two: chunk 0. Behind fourteen it stays, and the oldest of the units in no chunk goes.
    """
    means = torch.tensor([[9.0, 0], [1, 4], [3, 2], [5, 1]])
    apart = torch.tensor([[0.5, -2], [-0.5, 2]])
    keys = torch.cat([(means[:, None] + apart).flatten(0, 1), torch.full((3, 2), 99.0)])  # two slots are scratch
    query = torch.tensor([[[2.0, 0], [0, 0], [3, 1], [-3, 1]]])
    ranking = ranked(keys.expand(1, 2, -1, -1), query, torch.tensor([9]), 9, chunk=2, most=3)
    assert ranking.order.tolist() == [[[0, 3, 2], [0, 1, 2]]] and ranking.covered.tolist() == [8]
    assert ranking.kept(torch.tensor([9]), 6).tolist() == [[[0, 1, 4, 6, 7, 8], [0, 1, 2, 3, 4, 8]]]
    assert ranking.kept(torch.tensor([12]), 6).tolist() == [[[0, 1, 8, 9, 10, 11]] * 2]
    assert ranking.kept(torch.tensor([14]), 6).tolist() == [[[0, 1, 10, 11, 12, 13]] * 2]


LOOKS = {7: 4, 5: 6, 1: 5, 3: 0, 0: 4}
VOTES = {0: 1, 1: 1, 2: 1, 3: 1, 4: 5, 5: 3, 6: 0, 7: 2}


def looking() -> LlamaForCausalLM:
    """A Llama of one layer: a unit looks for another one, and says what that one votes for.

    Where the other one is not in sight, it looks at all units alike, and says what most of them vote for. Units are in
    dimensions that positions practically do not turn.
    """
    rope = {"rope_type": "default", "rope_theta": 1e30}
    sizes = dict(vocab_size=8, hidden_size=16, intermediate_size=4, num_hidden_layers=1, head_dim=32)
    heads = dict(num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=64)
    model = LlamaForCausalLM(LlamaConfig(**sizes, **heads, rope_parameters=rope, tie_word_embeddings=False)).eval()
    layer = model.model.layers[0]
    for name, weight in model.named_parameters():
        weight.data.fill_(1.0 if "norm" in name else 0.0)
    for unit in range(8):
        model.model.embed_tokens.weight.data[unit, unit] = 1
        model.lm_head.weight.data[unit, 8 + unit] = 8
        layer.self_attn.k_proj.weight.data[8 + unit, unit] = 4
        layer.self_attn.v_proj.weight.data[VOTES[unit], unit] = 1
        for head in range(2):
            if unit in LOOKS:
                layer.self_attn.q_proj.weight.data[32 * head + 8 + LOOKS[unit], unit] = 4
            layer.self_attn.o_proj.weight.data[8 + unit, 32 * head + unit] = 1
    model.generation_config.eos_token_id = None
    return model


def test_two_rounds_by_hand() -> None:
    """The prompt is 0 … 7, in chunks of two; six slots are kept. 7 looks for 4, which votes for 5: the first unit.

    Ranks: chunk 0 (always), chunk 2 (4 is in it), chunk 1 (the others score alike, and it is the first of them).

    Round 1: slots 0 1 2 3 4 5 and the root 5, which looks for 6: not kept. Of the seven units in sight four vote for 1.
    1 looks for 5, which votes for 3; 3 looks for 0, which votes for 1. The draft is 1 3 1. The target sees 6, which
    votes for 0, and refuses all.
    Round 2: unit 5 behind the prompt takes the last place, that of slot 3. The root 0 looks for 4: 5. That looks for 6
    again; of the units in sight, 0 1 2 4 5 5 0 5, four vote for 1 and three for 3: 1. Then 3, as before. The draft is
    5 1 3, and its first unit is accepted.
    """
    drafter = Cascade(CascadeOptions(cache="retrieval", budget=6, sinks=0, chunk=2))
    decoder = Decoder(TransformersTarget(looking()), drafter, k=3)
    state = decoder.start(torch.arange(8)[None], 12, warp=Warp.sampling(temperature=0))
    assert state.root.tolist() == [5]
    drafts, emitted, kept = [], [], []
    for _ in range(2):
        length = state.cache.slots.length
        decoder.advance(state)
        drafts.append(state.step.draft.drafted[0].tolist())
        emitted.append(state.history[0, 8 : 8 + state.host.emitted[0]].tolist())
        (ranking,) = state.memory.cache.rankings
        assert ranking.order.tolist() == [[[0, 2, 1]]]
        kept.append(ranking.kept(length, 6)[0, 0].tolist())
    assert drafts == [[1, 3, 1], [5, 1, 3]]
    assert emitted == [[5, 0], [5, 0, 5, 0]]
    assert kept == [[0, 1, 2, 3, 4, 5], [0, 1, 2, 4, 5, 8]]


def brute_force(keys: Tensor, query: Tensor, committed: int, length: int, chunk: int, budget: int) -> list[set[int]]:
    """The slots that every key head of a row keeps; chunks were ranked when there were `committed` units."""
    group, covered, result = len(query) // len(keys), committed // chunk * chunk, []
    for head, own in enumerate(keys):
        mean = sum(query[head * group + each] for each in range(group)) / group
        score = {n: float(mean @ own[n * chunk : (n + 1) * chunk].mean(0)) for n in range(1, covered // chunk)}
        best = [0, *sorted(score, key=lambda n: -score[n])] if covered else []
        slots = [n * chunk + i for n in best for i in range(chunk)]
        late = list(range(covered, length))
        room = max(budget - len(late), chunk if covered else 0)
        slots = slots[:room]
        result.append({*slots, *late[max(0, len(late) - (budget - len(slots))) :]})
    return result


@pytest.mark.parametrize("budget", [16, 19, 48])
def test_what_is_kept_equals_brute_force_row_by_row(budget: int) -> None:
    """Rows of several lengths, one shorter than a chunk; grouped queries; as texts become longer."""
    torch.manual_seed(0)
    keys, query = torch.randn(4, 2, 96, 8), torch.randn(4, 6, 8)
    begun = torch.tensor([37, 5, 40, 16])
    ranking = ranked(keys, query, begun, 40, chunk=8, most=-(-budget // 8))
    for new in (0, 1, 7, 20, 50):
        length = begun + new
        kept = ranking.kept(length, budget)
        for row in range(4):
            whole, n = int(begun[row]), int(length[row])
            expected = brute_force(keys[row], query[row], whole, n, 8, budget)
            alone = ranked(keys[row : row + 1], query[row : row + 1], begun[row : row + 1], whole, 8, -(-budget // 8))
            assert torch.equal(
                alone.kept(length[row : row + 1], budget)[0, :, : min(n, budget)], kept[row, :, : min(n, budget)]
            )
            for head in range(2):
                slots = kept[row, head, : min(n, budget)].tolist()
                assert len(set(slots)) == len(slots) and set(slots) == expected[head]
                assert whole < 8 or set(range(8)) <= set(slots), "chunk 0 always stays"
                assert set(range(max(whole // 8 * 8, n - budget + 8), n)) <= set(slots), "what is new is always seen"


@pytest.mark.parametrize("name", ["llama", pytest.param("gemma2", marks=pytest.mark.slow), "gpt2"])
def test_the_queries_of_the_last_units_are_heard_and_nothing_changes(name: str) -> None:
    """They are those of a pass over the whole text, and the bits of the call stay."""
    target, given = TransformersTarget(build(name)), prompts()
    target.keep_all = True
    call = target.start(given, 8, 4).cache
    slots, index = call.slots, TreeIndex.chain(60, torch.device("cpu"))
    before = [(layer.keys.clone(), layer.values.clone(), slots.length.tolist()) for layer in slots.owning]
    found = last_queries(call.passes, slots, given["input_ids"][:, -1:])
    used = max(slots.length.tolist())
    for layer, (keys, values, length) in zip(slots.owning, before, strict=True):
        assert torch.equal(layer.keys[:, :, :used], keys[:, :, :used]) and slots.length.tolist() == length
        assert torch.equal(layer.values[:, :, :used], values[:, :, :used])
    whole = target.start({"input_ids": given["input_ids"][:1]}, 64, 64).cache.slots
    whole.length = whole.length * 0
    heard = dict[int, Tensor]()
    whole.open(0, 60)
    arguments = call.passes.arguments(whole, index.depth, None, 1)
    geometry = call.passes.geometry(whole, index, 0, False)
    with torch.inference_mode(), hosts_budget._queries.holding(heard), call.passes.attending(hosts_budget.HEARD):
        branches = Branches.of(index, torch.float32)
        call.passes.forward(whole, given["input_ids"][:1], geometry, arguments, branches)
    for ours, layer in zip(found, whole.owning, strict=True):
        assert torch.allclose(ours[0], heard[layer.keys.untyped_storage().data_ptr()][0, :, -1], atol=1e-3)


@pytest.mark.parametrize("name", ["llama", "gemma2", pytest.param("gpt_oss", marks=pytest.mark.slow)])
def test_with_a_budget_for_the_whole_text_scores_are_the_targets(name: str) -> None:
    """Below that, layers with a window keep the latest slots, and heads of the others choose their own."""
    target, given = TransformersTarget(build(name)), prompts()
    windowed = [isinstance(layer, DynamicSlidingWindowLayer) for layer in target.model_info.layers()]
    for budget in (64, 16):
        state = Decoder(target, Cascade(CascadeOptions(budget=budget, cache="retrieval")), k=3).start(given, 8)
        small = BudgetedTarget(target, budget, 0, Retrieval())
        started = small.start(state, 4, 4)
        full = target.verify(state.cache, Draft.alone(state.root)).logits
        assert torch.allclose(started.output.logits, full, atol=1e-4) == (budget == 64)
        kept = [ranking is None for ranking in started.cache.rankings]
        assert kept == [short for layer, short in zip(state.cache.slots.layers, windowed, strict=True)]
        latest = torch.arange(60 - 15, 60)  # one slot of sixteen is for the next rounds
        for layer, whole, short in zip(started.cache.slots.layers, state.cache.slots.layers, windowed, strict=True):
            if short and budget == 16:
                assert torch.equal(layer.keys[0, :, :15], whole.keys[0][:, latest])


@pytest.mark.parametrize("cache", ["retrieval", "streaming"])
def test_rounds_append_to_the_small_cache_until_it_is_full(cache: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of several lengths: each has what the outer call committed, and no more than the budget."""
    cuts, cut = [], BudgetedTarget._cut_down
    monkeypatch.setattr(BudgetedTarget, "_cut_down", lambda *given: cuts.append(1) or cut(*given))
    decoder = Decoder(TransformersTarget(build("llama")), Cascade(CascadeOptions(budget=48, sinks=4, cache=cache)), k=2)
    given = prompts() if cache == "retrieval" else {"input_ids": prompts()["input_ids"]}
    state = decoder.start(given, 40, seed=3)
    while state.most_room:  # a round that may draft
        before = state.cache.slots.length.clone()
        decoder.advance(state)
        small, since = state.memory.cache.slots, state.memory.cache.since
        assert since.committed.equal(before) and int(since.held.max()) <= since.longest <= since.budget <= 48
        for row in range(3):
            own, new = int(since.held[row]), int(before[row])
            for layer, whole in zip(small.owning, state.cache.slots.owning, strict=True):
                assert torch.equal(layer.keys[row, :, own - 3 : own], whole.keys[row, :, new - 3 : new])
    assert 1 < len(cuts) < state.report.rounds


@pytest.mark.thinned(1)
@pytest.mark.parametrize("sampling", [{"do_sample": False}, {"do_sample": True, "temperature": 0.8}], ids=str)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.filterwarnings("ignore:.*retrieves nothing")
def test_equal_to_unmodified_generate(name: str, sampling: dict[str, Any]) -> None:
    model, call = build(name), dict(max_new_tokens=18, **sampling)
    runs = {batch: stock(model, prompts(batch), 0, **call) for batch in (3, 1)}
    for budget, renew in ((32, 2), (128, 0)):
        with mmspec.enable(model, "triforce", budget=budget, renew=renew, k=4) as spec:
            for batch, expected in runs.items():
                torch.manual_seed(0)
                assert_same(model.generate(**prompts(batch), **call), expected, torch.get_rng_state())
                assert not spec.report.faults
                assert budget == 32 or spec.report.acceptance_rate == 1


def test_a_ranking_is_a_pass_of_the_target_and_is_counted() -> None:
    """One when drafting begins; and one every two rounds, if chunks are to be chosen anew."""
    model, counts = build("llama"), []
    for renew in (0, 2):
        inner, heard = [], list[int]()
        drafter = Cascade(CascadeOptions(budget=32, cache="retrieval", renew=renew, inner_k=0))
        hook = model.model.layers[0].register_forward_hook(lambda *_, heard=heard: heard.append(1))
        decoder = Decoder(TransformersTarget(model), drafter, k=3)
        heard.clear()
        state = decoder.start(prompts(1), 20)
        while not state.finished:
            decoder.advance(state)
            inner.append(state.memory.cache.age)
        hook.remove()
        assert len(heard) == 1 + state.report.rounds + state.report.inner_passes
        counts.append(inner[:5])
    assert counts == [[0, 1, 2, 3, 4], [0, 1, 0, 1, 0]]


@pytest.mark.parametrize("drafted", [False, True], ids=["no model", "a draft model"])
@pytest.mark.parametrize("method", ["cascade", "triforce"])
def test_under_guidance_both_halves_are_cut_down(method: str, drafted: bool) -> None:
    model, given = build("llama"), {"input_ids": prompts(1)["input_ids"]}
    own: dict[str, Any] = {"drafter": build("llama"), "draft_budget": 32} if drafted else {}
    call = dict(max_new_tokens=12, do_sample=True, guidance_scale=1.5)
    expected = stock(model, given, 0, **call)
    for budget in (16, 128):
        with mmspec.enable(model, method, k=4, budget=budget, **own) as spec:
            torch.manual_seed(0)
            assert_same(model.generate(**given, **call), expected, torch.get_rng_state())
            assert not spec.report.faults and spec.report.drafted
            assert budget == 16 or spec.report.acceptance_rate == 1


def test_the_first_and_the_latest_units_by_hand() -> None:
    """Rows of nine units, of four and of six; five are seen, two of them the first."""
    units = torch.arange(1, 10).expand(3, -1) * (torch.arange(9) >= torch.tensor([[0], [5], [3]]))
    prompt = latest(units, torch.tensor([0, 5, 3]), 5, 2)
    assert prompt["input_ids"].masked_fill(prompt["attention_mask"] == 0, 0).tolist() == [
        [1, 2, 7, 8, 9],
        [0, 6, 7, 8, 9],
        [4, 5, 7, 8, 9],
    ]


@pytest.mark.parametrize("draft_budget", [32, 128])
def test_a_draft_model_sees_the_first_and_the_latest_units(draft_budget: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """At the beginning of every inner call its cache is that of a call over these units, rolled back or read anew; and
    the text is that of unmodified `generate`.
    """
    model, small, reads = build("llama"), build("llama"), list[bool]()
    start = Streamed.start

    def started(self: Streamed, state: Any, inputs: Any) -> Any:
        memory = start(self, state, inputs)
        reads.append(int(memory.seen.max()) == 0)
        units, held = state.history, state.prompt_length - state.pads + memory.seen
        for row, (gone, pad) in enumerate(zip(memory.gone, state.host.pads, strict=True)):
            length, text = int(held[row]) - gone, units[row, pad : pad + int(held[row])]
            assert length <= draft_budget and memory.cache.slots.length[row] == length
            seen = torch.cat([text[:4], text[4 + gone :]]) if gone else text
            alone = self.small.start({"input_ids": seen[None]}, 4, 4).cache.slots
            for ours, theirs in zip(memory.cache.slots.owning, alone.owning, strict=True):
                assert torch.allclose(ours.keys[row, :, :length], theirs.keys[0, :, :length], atol=1e-3)
        return memory

    monkeypatch.setattr(Streamed, "start", started)
    call = dict(max_new_tokens=40, do_sample=True)
    expected = stock(model, prompts(), 0, **call)
    how = dict(drafter=small, budget=128, k=4, draft_budget=draft_budget, draft_sinks=4)
    with mmspec.enable(model, "triforce", **how) as spec:
        torch.manual_seed(0)
        assert_same(model.generate(**prompts(), **call), expected, torch.get_rng_state())
    report = spec.report
    assert not report.faults and 1 <= sum(reads) < len(reads) and (draft_budget == 32 or sum(reads) == 1)
    # The middle level is the target: a pass for the root of every round. Where the draft model sees all, it is it, too
    assert report.inner_passes > report.rounds and (draft_budget == 32 or report.inner_passes < 3 * report.rounds)


def test_refusals() -> None:
    with pytest.raises(ValueError, match=r"a streaming cache of 64 slots with 60 sinks does not fit: the sinks are"):
        mmspec.enable(build("llama"), "triforce", drafter=build("llama"), draft_budget=64, draft_sinks=60)
    with pytest.raises(ValueError, match=r"a budget of 16 slots has no room for the first chunk of 16 and another"):
        mmspec.enable(build("llama"), "triforce", budget=16, chunk=16)
    with pytest.raises(
        ValueError, match=r"computes its attention itself, so that its queries cannot be heard; use cach"
    ):
        mmspec.enable(build("falcon-new"), "triforce")
    with pytest.raises(ValueError, match=r"cache"):
        mmspec.enable(build("llama"), "triforce", cache="retreival")
    model = build("deepseek_v3")
    with (
        mmspec.enable(model, "triforce", budget=16, k=3),
        pytest.warns(UserWarning, match="retrieves nothing: its quer"),
    ):
        model.generate(**prompts(1), max_new_tokens=4)
