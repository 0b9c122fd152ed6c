"""The host against transformers: prompts of every kind, drafts in pieces, caches handed back, models refused."""

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, DynamicCache, MistralForCausalLM, StaticCache

from mmspec.core.decoder import Decoder
from mmspec.core.drafters.host import HostDrafterAdapter
from mmspec.core.types import Draft
from mmspec.core.warp import Warp
from mmspec.hosts.model_info import ModelInfo, lengths
from mmspec.hosts.reference_paths import ReferencePaths
from mmspec.hosts.self_check import CEILING, examine
from mmspec.hosts.target import TransformersTarget
from tests.draws.owned import OWNED, with_own_attention
from tests.support.zoo import build

VOCAB, NEW = 131, 16
TREE = [-1, -1, 0, 0, 2, 1]


class Guess:
    """Drafts what it is told, which need not be right."""

    def __init__(self, text: Tensor) -> None:
        self.text = text.tolist()
        self.given: list[int] = []

    def propose(self, tokens: list[list[int]], k: int) -> list[list[int]]:
        self.given = self.given or [len(row) - 1 for row in tokens]
        done = [len(row) - n for row, n in zip(tokens, self.given, strict=True)]
        return [[*text[n : n + k - 1], 5][:k] for text, n in zip(self.text, done, strict=True)]


def small(kind: str, **config: Any) -> Any:
    sizes = dict(vocab_size=VOCAB, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4)
    settings = dict(num_key_value_heads=2, max_position_embeddings=512, pad_token_id=0, eos_token_id=None)
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **{**sizes, **settings, **config})).eval()
    for weights in model.parameters():
        if weights.dim() > 1:
            weights.data.mul_(4)
    return model


@pytest.fixture(scope="module")
def windowed() -> MistralForCausalLM:
    return small("mistral", sliding_window=9)


def stock(model: Any, new: int = NEW, **inputs: Any) -> Any:
    return model.generate(
        **inputs, max_new_tokens=new, do_sample=False, return_dict_in_generate=True, pad_token_id=0, eos_token_id=None
    )


def ours(model: Any, right: Tensor, **inputs: Any) -> tuple[list[Tensor], Any]:
    """Units, and the state that made them, drafted from what is right, now and then wrong."""
    decoder = Decoder(TransformersTarget(model), HostDrafterAdapter(Guess(right)), k=4)
    state = decoder.start(inputs, right.shape[1], warp=Warp(sample=False))
    while not state.finished:
        decoder.advance(state)
    assert state.report.acceptance_length > 1.5
    return state.output(), state


def holes() -> dict[str, Tensor]:
    ids = torch.randint(3, VOCAB, (2, 14), generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(ids)
    mask[0, :3] = mask[0, 6] = mask[1, 5] = 0
    return {"input_ids": ids, "attention_mask": mask}


@pytest.mark.parametrize("window", [True, False])
def test_holes_in_a_mask(target: Any, windowed: Any, window: bool) -> None:
    model, inputs = windowed if window else target, holes()
    right = stock(model, **inputs).sequences[:, 14:]
    assert torch.equal(torch.stack(ours(model, right, **inputs)[0]), right)


def test_embeddings_as_a_prompt(target: Any) -> None:
    inputs = holes()
    embeds = target.get_input_embeddings()(inputs.pop("input_ids")).detach()
    right = stock(target, inputs_embeds=embeds, **inputs).sequences
    assert torch.equal(torch.stack(ours(target, right, inputs_embeds=embeds, **inputs)[0]), right)


@pytest.mark.parametrize("only_new", [True, False])
def test_an_earlier_turn(target: Any, windowed: Any, only_new: bool) -> None:
    for model in (target, windowed):
        inputs = holes()
        first = stock(model, 6, **inputs, past_key_values=DynamicCache(config=model.config))
        said = torch.randint(3, VOCAB, (2, 5), generator=torch.Generator().manual_seed(2))
        ids = torch.cat([first.sequences[:, -1:] if only_new else first.sequences, said], 1)
        mask = torch.cat([inputs["attention_mask"], torch.ones(2, 6 + 5).long()], 1)
        second = dict(input_ids=ids, attention_mask=mask)
        right = stock(model, **second, past_key_values=copy.deepcopy(first.past_key_values)).sequences[
            :, ids.shape[1] :
        ]
        units, _ = ours(model, right, **second, past_key_values=copy.deepcopy(first.past_key_values))
        assert torch.equal(torch.stack(units), right)


def test_the_cache_that_comes_back_is_the_one_that_stock_returns(target: Any, windowed: Any) -> None:
    """Rows that ended early go on with padding there, so they do here; then a turn goes on from both."""
    for model in (target, windowed):
        ids = torch.randint(3, VOCAB, (3, 9), generator=torch.Generator().manual_seed(3))
        mask = (torch.arange(9) >= torch.tensor([0, 4, 2])[:, None]).long()
        inputs = dict(input_ids=ids, attention_mask=mask)
        free = stock(model, **inputs).sequences[:, 9:]
        ends = [int(free[0, 2]), int(free[2, 7])]
        theirs = model.generate(
            **inputs,
            max_new_tokens=NEW,
            do_sample=False,
            return_dict_in_generate=True,
            eos_token_id=ends,
            pad_token_id=0,
        )
        decoder = Decoder(TransformersTarget(model), HostDrafterAdapter(Guess(free)), k=4)
        given = DynamicCache(config=model.config)
        state = decoder.start({**inputs, "past_key_values": given}, NEW, warp=Warp(sample=False), ends=ends)
        while not state.finished:
            decoder.advance(state)
        assert len(set(state.host.emitted)) > 1, "all rows ended together"
        cache = decoder.target.export(state.cache, theirs.sequences, state.emitted)  # type: ignore[attr-defined]
        assert cache is given and cache.get_seq_length() == theirs.past_key_values.get_seq_length()
        for mine, right in zip(cache.layers, theirs.past_key_values.layers, strict=True):
            held = right.keys.shape[2]
            column = torch.cat([mask, torch.ones(3, 99).long()], 1)[:, : cache.get_seq_length()][:, -held:]
            kept = column[:, None, :, None].bool()
            assert mine.keys.shape == right.keys.shape
            assert ((mine.keys - right.keys) * kept).abs().max() < 1e-4
            assert ((mine.values - right.values) * kept).abs().max() < 1e-4


def test_a_cache_that_is_full_comes_back_whole(target: Any) -> None:
    """Padding is fed for the row that ended early; beside it the other row has no slots left to pass over."""
    ids = torch.randint(3, VOCAB, (2, 40), generator=torch.Generator().manual_seed(5))
    first, other = stock(target, 20, input_ids=ids).sequences[:, 40:].tolist()
    end = next(token for token in first if token not in other)
    right = target.generate(
        ids, max_new_tokens=20, do_sample=False, return_dict_in_generate=True, eos_token_id=end, pad_token_id=0
    )
    decoder = Decoder(TransformersTarget(target))
    state = decoder.start(ids, 20, warp=Warp(sample=False), ends=end)
    while not state.finished:
        decoder.advance(state)
    assert state.host.emitted[0] < 10 and state.host.emitted[1] == 20 and state.cache.slots.capacity == 64
    back = TransformersTarget(target).export(state.cache, right.sequences, state.emitted)
    for mine, theirs in zip(back.layers, right.past_key_values.layers, strict=True):
        assert torch.allclose(mine.keys, theirs.keys, atol=1e-4)
        assert torch.allclose(mine.values, theirs.values, atol=1e-4)


def test_float64_is_judged_by_what_is_computed_in_float32() -> None:
    model = small("llama").double()
    ids = torch.randint(3, VOCAB, (1, 9))
    right = stock(model, input_ids=ids).sequences[:, 9:]
    assert torch.equal(ours(model, right, input_ids=ids)[0][0], right[0])


def test_static_caches_are_taken_and_dynamic_ones_given_back(target: Any) -> None:
    ids = torch.randint(3, VOCAB, (1, 9))
    right = stock(target, input_ids=ids)
    static = StaticCache(config=target.config, max_cache_len=64)
    _, state = ours(target, right.sequences[:, 9:], input_ids=ids, past_key_values=static)
    back = TransformersTarget(target).export(state.cache, right.sequences, state.emitted)
    assert type(back) is DynamicCache and back.get_seq_length() == right.past_key_values.get_seq_length()


@pytest.mark.parametrize("cut", [1, 2, 4])
def test_a_draft_verified_in_pieces(windowed: Any, prompts: Callable, cut: int) -> None:
    """The scores of one pass over all, and the same commit."""
    adapter = TransformersTarget(windowed)
    units, root = torch.randint(3, VOCAB, (3, len(TREE))), torch.randint(3, VOCAB, (3,))

    def draft(k: int) -> Draft:
        return Draft.tree(units[:, :k], TREE[:k]).rooted(root, torch.full((3,), 99))

    path, count, after = torch.tensor([[1, 3, 5], [2, 6, -1], [1, -1, -1]]), torch.tensor([4, 3, 2]), []
    for pieces in ([(len(TREE), 0)], [(0, 0), (cut, 1), (len(TREE), cut + 1)]):
        cache = adapter.start(prompts(3), 20, len(TREE) + 1).cache
        logits = torch.cat([adapter.verify(cache, draft(k), first).logits for k, first in pieces], 1)
        adapter.commit(cache, path, count)
        again = adapter.verify(cache, Draft.empty(root).rooted(root, torch.zeros(3))).logits
        after.append((logits, again, cache.slots.length))
    assert torch.allclose(after[0][0], after[1][0], atol=1e-4) and torch.allclose(after[0][1], after[1][1], atol=1e-4)
    assert torch.equal(after[0][2], after[1][2])


def test_distances_by_slot_are_caught_by_the_self_check() -> None:
    """MPT takes trees without a murmur and scores them wrongly."""
    model = AutoModelForCausalLM.from_config(
        AutoConfig.for_model("mpt", d_model=64, n_heads=4, n_layers=2, vocab_size=VOCAB, max_seq_len=512)
    ).eval()
    finding = examine(ModelInfo.of(model))
    assert finding.manner is None and not finding.trouble and finding.error > 100 * finding.tolerance
    with pytest.raises(ValueError, match=r"differ by .*e-0.* from whole paths' logits.*ALiBi"):
        TransformersTarget(model)


@pytest.mark.parametrize(("times", "accepted"), [(2.6, True), (8.9, False)])
def test_what_a_model_makes_of_its_own_rounding_is_the_measure(
    monkeypatch: pytest.MonkeyPatch, times: float, accepted: bool
) -> None:
    """Right and wrong trees of Mamba-2 at a width of 2,560, as multiples of the noise, which was near the ceiling."""

    def noise(paths: ReferencePaths) -> float:
        return 0.9 * CEILING * float(paths.chains[0].abs().max())

    monkeypatch.setattr(ReferencePaths, "noise", noise)
    monkeypatch.setattr(ReferencePaths, "distance", lambda paths, passes: times * noise(paths))
    assert (examine(ModelInfo.of(small("llama"))).manner is not None) == accepted


def test_the_self_check_leaves_no_trace() -> None:
    model = small("gpt2", n_embd=64, n_head=4, n_layer=2, n_positions=512).train()
    model.transformer.h[0].eval()
    training = [module.training for module in model.modules()]
    before, settings = torch.get_rng_state(), model.config.to_dict()
    examine(ModelInfo.of(model))
    assert [module.training for module in model.modules()] == training
    assert torch.equal(torch.get_rng_state(), before) and model.config.to_dict() == settings


def test_weights_that_are_no_numbers_are_named() -> None:
    model = small("llama", hidden_size=32)
    model.lm_head.weight.data[0, 0] = float("nan")
    with pytest.raises(ValueError, match="its own logits are NaN or infinite; check the weights"):
        TransformersTarget(model)


def test_long_rope_ends_where_it_switches() -> None:
    rope = {
        "rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1.0] * 8, "long_factor": [2.0] * 8,
        "original_max_position_embeddings": 40,
    }  # fmt: skip
    model = small("phi3", rope_parameters=rope, original_max_position_embeddings=40, max_position_embeddings=128)
    ids = torch.randint(3, VOCAB, (1, 20))
    right = stock(model, 20, input_ids=ids).sequences[:, 20:]
    assert torch.equal(ours(model, right, input_ids=ids)[0][0], right[0])
    with pytest.raises(ValueError, match=r"20 tokens of prompt and 21 new ones go beyond position 40, and long-rope"):
        TransformersTarget(model).start(ids, 21, 1)


def llama4(floor: int) -> Any:
    """A model whose attention has a temperature by position, from `floor` on, in layers without rope."""
    model = small(
        "llama4_text", num_local_experts=2, attention_chunk_size=12, intermediate_size_mlp=96, head_dim=16,
        interleave_moe_layer_step=2, layer_types=["chunked_attention", "full_attention"], no_rope_layers=[0, 1],
        floor_scale=floor, attn_temperature_tuning=True, attn_scale=4.0,
    )  # fmt: skip
    model.get_output_embeddings().weight.data.mul_(4)
    return model


@pytest.mark.parametrize(("floor", "prompt"), [(130, 70), (16, 20), (81, 70), (110, 100)])
@pytest.mark.parametrize("rows", [1, 2])
def test_temperature_by_position(floor: int, prompt: int, rows: int) -> None:
    """Llama 4 asks the cache how long it is: nodes of a draft are at their depth, on either side of the floor."""
    model, ids = llama4(floor), torch.randint(3, VOCAB, (rows, prompt), generator=torch.Generator().manual_seed(1))
    right = stock(model, 22, input_ids=ids).sequences[:, prompt:]
    if rows > 1 and prompt + 22 > floor:
        with pytest.raises(ValueError, match=rf"go beyond {floor} \(floor_scale\), .* by the column of a batch"):
            TransformersTarget(model).start(ids, 22, 1)
        return
    assert torch.equal(torch.stack(ours(model, right, input_ids=ids)[0]), right)


def test_a_padded_row_is_not_scaled_by_its_columns() -> None:
    model, ids = llama4(40), torch.randint(3, VOCAB, (1, 30))
    padded = {"input_ids": ids, "attention_mask": torch.ones_like(ids).index_fill(1, torch.arange(3), 0)}
    TransformersTarget(model).start(padded, 10, 1)
    with pytest.raises(ValueError, match="without padding"):
        TransformersTarget(model).start(padded, 11, 1)


@pytest.mark.parametrize("own", OWNED)
def test_code_of_the_users_is_compared_at_the_length_of_the_call(own: str) -> None:
    """No setting names the length, here 100, from which on its attention has a temperature by what it counts."""
    model = small("llama")
    with_own_attention(model, own, 100)
    target, ids = TransformersTarget(model), torch.randint(3, VOCAB, (2, 80))
    padded = {"input_ids": ids[:1], "attention_mask": torch.ones(1, 80).long().index_fill(1, torch.arange(9), 0)}
    calls = {"one row": ids[:1], "two rows": ids, "padded": padded}
    refused = {name for name, inputs in calls.items() if _refused(target, inputs)}
    most = {"position-ids": set(), "length-of-layer": {"two rows", "padded"}}
    assert refused == most.get(own, {*calls})


def _refused(target: TransformersTarget, inputs: Any) -> bool:
    try:
        target.start(inputs, 22, 1)
    except ValueError as error:
        assert "not transformers'), so it is" in str(error) or "depends on the padding" in str(error)
        return True
    return False


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_window_that_the_first_check_does_not_reach(dtype: torch.dtype) -> None:
    """GPT-Neo masks by slot; the class's own window is 256, and a call that gets there is compared once more."""
    own = dict(num_layers=2, num_heads=4, attention_types=[[["global", "local"], 1]])
    target = TransformersTarget(small("gpt_neo", **own, window_size=256).to(dtype))
    ids = torch.randint(3, VOCAB, (1, 240), generator=torch.Generator().manual_seed(1))
    target.start(ids, 16, 4)
    with pytest.raises(ValueError, match=r"text of more than 256 units \(window_size of its config\).*differ by"):
        target.start(ids, 17, 4)
    if dtype is torch.float32:
        with pytest.raises(ValueError, match=r"rounding explains .*; it may count slots, .* for window_size=12 of"):
            TransformersTarget(small("gpt_neo", **own, window_size=12))


def test_units_that_are_rated_alike() -> None:
    """Doge keeps so many units a layer; of a unit that is repeated, the shape of a pass says which of them stay."""
    ids, few = torch.randint(3, VOCAB, (1, 80)), torch.randint(3, 11, (1, 80))
    target = TransformersTarget(small("doge", keep_window_size=100))
    target.start(ids, 20, 4)
    with pytest.raises(ValueError, match=r"go beyond position 100, and of units that its layers rate alike"):
        target.start(ids, 21, 4)
    model = small("doge", keep_window_size=20, sliding_window=12)  # no window has so many
    right = stock(model, 20, input_ids=few).sequences[:, 80:]
    assert torch.equal(ours(model, right, input_ids=few)[0][0], right[0])


def test_what_is_wrong_far_behind_a_length() -> None:
    """Next to a length, hardly any of Doge's units are dropped."""
    model = small("doge", keep_window_size=100)
    target = TransformersTarget(model, model_info=replace(ModelInfo.of(model), reach=None))
    target.start(torch.randint(3, VOCAB, (1, 80)), 20, 4)
    with pytest.raises(ValueError, match=r"text of more than \d+ units \(keep_window_size of its config\)"):
        target.start(torch.randint(3, VOCAB, (1, 300)), 20, 4)


def test_lengths_of_a_configuration() -> None:
    """Of settings of transformers, those that name a length from which on a class may do something else."""
    own = dict(window_size=7, floor_scale=9, num_local_experts=3, max_window_layers=4, block_size=5, hidden_size=64)
    info = ModelInfo.of(small("qwen2", **own, use_sliding_window=True, sliding_window=11))
    assert lengths(info) == {7: "window_size", 9: "floor_scale", 5: "block_size", 11: "sliding_window"}


@pytest.mark.parametrize("name", ["whisper", "git"])
def test_a_model_that_counts_padding_is_refused_with_it(name: str) -> None:
    """In transformers a padded row of these has another text than alone; without padding the model is taken."""
    target, ids = TransformersTarget(build(name)), torch.randint(3, 120, (2, 9))
    target.start(ids, 4, 1)
    with pytest.raises(ValueError, match=r"in a padded row depends on the padding .* as in the row alone"):
        target.start({"input_ids": ids, "attention_mask": torch.ones_like(ids).index_fill(1, torch.arange(2), 0)}, 4, 1)


@pytest.mark.parametrize("name", ["git", "big_bird", "llama"])
def test_masks_are_read_in_the_same_way_in_half_precision(name: str) -> None:
    """The own attention of GIT and BigBird adds a mask to scores; read as 0 and 1, the error is small in bfloat16."""
    dtypes = (torch.float32, torch.bfloat16, torch.float16)
    manners = {TransformersTarget(build(name).to(dtype)).passes.manner for dtype in dtypes}
    assert manners == {"interface" if name == "llama" else "explicit"}


def test_a_model_that_replaces_its_parts_is_refused_and_stays_whole() -> None:
    """A short text turns BigBird's sparse attention into full attention; long ones must find it as it was."""
    model = small("big_bird", is_decoder=True, block_size=4, num_random_blocks=1)
    ids = torch.randint(3, VOCAB, (1, 64), generator=torch.Generator().manual_seed(1))
    expected = copy.deepcopy(model).generate(ids, max_new_tokens=1)
    with pytest.raises(ValueError, match=r"a short text replaces its bert\.encoder\.layer\.0\.attention\.self"):
        TransformersTarget(model)
    assert torch.equal(model.generate(ids, max_new_tokens=1), expected)


def test_what_cannot_be_a_target_says_why() -> None:
    from transformers import BertConfig, BertModel, MambaConfig, MambaForCausalLM, T5Config, T5ForConditionalGeneration

    tiny = dict(vocab_size=VOCAB, hidden_size=32, num_hidden_layers=1)
    t5 = T5ForConditionalGeneration(T5Config(vocab_size=VOCAB, d_model=32, d_kv=8, d_ff=32, num_layers=1, num_heads=4))
    bert = BertModel(BertConfig(**tiny, num_attention_heads=4, intermediate_size=32))
    for model, says in (
        (t5, "encoder–decoder"),
        (MambaForCausalLM(MambaConfig(**tiny, state_size=4)), "is recurrent"),
        (bert, "cannot generate"),
        (torch.compile(small("llama")), "model.compile()"),
    ):
        with pytest.raises(ValueError, match=says.replace("(", r"\(").replace(")", r"\)")):
            TransformersTarget(model)


def test_learned_positions_end_where_the_table_does() -> None:
    """A row that is done at the last position stands by while others go on, and while padding is fed."""
    model = small("gpt2", n_embd=64, n_head=4, n_layer=2, n_positions=24, max_position_embeddings=24)
    ids = torch.randint(3, VOCAB, (2, 13), generator=torch.Generator().manual_seed(6))
    with pytest.warns(UserWarning, match="13 tokens of prompt and 13 new ones do not fit the model's table of 24"):
        TransformersTarget(model).start(ids, 13, 1)
    first, other = stock(model, 12, input_ids=ids).sequences[:, 13:].tolist()
    end = next(token for token in first if token not in other)
    decoder = Decoder(TransformersTarget(model))
    state = decoder.start(ids, 12, warp=Warp(sample=False), ends=end)
    while not state.finished:
        decoder.advance(state)
    assert state.host.emitted[0] < state.host.emitted[1] == 12, "both rows ended together"
    padded = torch.nn.utils.rnn.pad_sequence(state.output(), batch_first=True)
    back = TransformersTarget(model).export(state.cache, torch.cat([ids, padded], 1), state.emitted)
    assert back.get_seq_length() == 24
    mask = torch.ones_like(ids)
    mask[1, :5] = 0
    right = stock(model, 12, input_ids=ids, attention_mask=mask).sequences[:, 13:]
    wrong = torch.stack([right[0], (right[1] + 1) % VOCAB])  # the row without padding is fast, the other slow
    decoder = Decoder(TransformersTarget(model), HostDrafterAdapter(Guess(wrong)), k=4)
    units = decoder.generate({"input_ids": ids, "attention_mask": mask}, 12, warp=Warp(sample=False)).units
    assert torch.equal(torch.stack(units), right)
