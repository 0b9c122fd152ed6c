"""Caches that users bring: plain ones are read and filled, all others are refused by name before anything runs."""

import copy
import gc
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from transformers import Cache, DynamicCache, EncoderDecoderCache, StaticCache
from transformers.cache_utils import DynamicLayer

import mmspec
from mmspec.compare.equality import assert_same
from mmspec.core.decoder import Decoder
from mmspec.core.warp import Warp
from mmspec.hosts.target import TransformersTarget


class Own(DynamicCache):
    """A user's own class of cache, or QuantizedCache, whose package is not installed."""


CACHES: dict[str, tuple[Callable[[Any], Any], str]] = {
    "static": (lambda config: StaticCache(config=config, max_cache_len=64), "is a StaticCache, which drafts cannot"),
    "offloaded static": (lambda config: StaticCache(config=config, max_cache_len=64, offloading=True), "StaticCache"),
    "offloaded": (lambda config: DynamicCache(config=config, offloading=True), "is a DynamicCache that offloads"),
    "of encoders and decoders": (
        lambda config: EncoderDecoderCache(DynamicCache(config=config), DynamicCache(config=config)),
        "is a EncoderDecoderCache, which",
    ),
    "own layers": (lambda config: Cache(layers=[DynamicLayer() for _ in range(2)]), "is a Cache, which"),
    "own class": (lambda config: Own(config=config), "is a Own, which"),
}


@pytest.fixture
def passes(target: Any) -> Iterator[list[int]]:
    seen: list[int] = []
    hook = target.register_forward_pre_hook(lambda module, args, kwargs: seen.append(1), with_kwargs=True)
    yield seen
    hook.remove()


@pytest.mark.parametrize("way", ["enable", "custom_generate"])
@pytest.mark.parametrize("case", CACHES)
def test_other_caches_are_refused_by_name(
    target: Any, prompts: Callable, passes: list[int], case: str, way: str
) -> None:
    make, says = CACHES[case]
    try:
        cache = make(target.config)
    except RuntimeError as error:
        pytest.skip(f"transformers' offloaded caches want streams, which a CUDA build without a GPU lacks: {error}")
    call = dict(**prompts(1), past_key_values=cache, max_new_tokens=4, do_sample=False)
    if way == "custom_generate":
        decoding = mmspec.custom_generate("prompt-lookup")
        target.generate(**prompts(1), max_new_tokens=2, do_sample=False, custom_generate=decoding)  # the self-check
        passes.clear()
        with pytest.raises(ValueError, match=says):
            target.generate(**call, custom_generate=decoding)
    else:
        with mmspec.enable(target, "prompt-lookup"):
            passes.clear()
            with pytest.raises(ValueError, match=says):
                target.generate(**call)
    assert not passes


def test_a_static_cache_that_stock_filled_is_refused_and_stays(target: Any, prompts: Callable) -> None:
    first = prompts(1)["input_ids"]
    cache = StaticCache(config=target.config, max_cache_len=64)
    turn = target.generate(first, past_key_values=cache, max_new_tokens=6, do_sample=False)
    held = cache.get_seq_length()
    with mmspec.enable(target, "plain"), pytest.raises(ValueError, match="past_key_values is a StaticCache"):
        target.generate(turn, past_key_values=cache, max_new_tokens=4, do_sample=False)
    assert cache.get_seq_length() == held
    with pytest.raises(ValueError, match="past_key_values is a StaticCache"):
        Decoder(TransformersTarget(target)).generate({"input_ids": turn, "past_key_values": cache}, 4)


@pytest.mark.compiled
def test_a_plain_cache_goes_back_and_forth(target: Any, prompts: Callable) -> None:
    def talk(enabled: bool) -> torch.Tensor:
        ids, cache = prompts(1)["input_ids"], DynamicCache(config=target.config)
        for turn in range(4):
            speculates = enabled and turn % 2 == 0
            torch.manual_seed(turn)
            if speculates:
                with mmspec.enable(target, "token-recycling"):
                    ids = target.generate(ids, past_key_values=cache, max_new_tokens=7, do_sample=True)
            else:
                ids = target.generate(ids, past_key_values=cache, max_new_tokens=7, do_sample=True)
            assert cache.get_seq_length() == ids.shape[1] - 1
        return ids

    assert torch.equal(talk(False), talk(True))


@pytest.mark.filterwarnings("ignore:.*deprecated")
@pytest.mark.parametrize("kind", ["static", "dynamic", "sliding_window", "hybrid"])
def test_caches_that_generate_makes(
    target: Any, prompts: Callable, theirs: Callable, ours: Callable, kind: str
) -> None:
    """Asked for by name, such caches change no output, and a plain one is returned."""
    call = dict(do_sample=True, max_new_tokens=10, cache_implementation=kind)
    mine = ours(target, prompts(2), 0, {"method": "prompt-lookup"}, **call)
    assert_same(mine.ids, theirs(target, prompts(2), 0, do_sample=True, max_new_tokens=10), mine.state)
    with mmspec.enable(target, "prompt-lookup"):
        out = target.generate(**prompts(1), **call, return_dict_in_generate=True)
    assert type(out.past_key_values) is DynamicCache
    assert out.past_key_values.get_seq_length() == out.sequences.shape[1] - 1


@pytest.mark.parametrize("kind", ["offloaded", "offloaded_static", "quantized", "paged"])
def test_caches_that_generate_does_not_make_here(target: Any, prompts: Callable, kind: str) -> None:
    with mmspec.enable(target, "plain"), pytest.raises(ValueError, match=f"cache_implementation='{kind}' is not"):
        target.generate(**prompts(1), max_new_tokens=4, cache_implementation=kind)


LENGTHS = [(1, 1), (10, 1), (10, 9), (10, 10), (10, 11), (10, 20)]
"""Columns of the cache, and new ids behind them."""


def behind_a_cache(model: Any, rows: int, cached: int, new: int, pads: int) -> tuple[DynamicCache, Any, Any]:
    """A cache that the unmodified model filled, and the ids and the mask of the whole conversation."""
    ids = torch.randint(3, 131, (rows, cached + new), generator=torch.Generator().manual_seed(new))
    mask = torch.ones_like(ids)
    mask[0, :pads] = 0
    positions, cache = (mask.cumsum(1) - 1).clamp(min=0), DynamicCache(config=model.config)
    with torch.no_grad():
        model(
            ids[:, :cached],
            attention_mask=mask[:, :cached],
            position_ids=positions[:, :cached],
            past_key_values=cache,
            use_cache=True,
        )
    return cache, ids, mask


@pytest.mark.thinned
@pytest.mark.parametrize("way", ["enable", "custom_generate"])
@pytest.mark.parametrize("method", ["plain", "prompt-lookup"])
@pytest.mark.parametrize("rows, pads", [(1, 0), (2, 0), (2, 3)])
@pytest.mark.parametrize("cached, new", LENGTHS)
def test_new_ids_behind_a_cache(
    target: Any, cached: int, new: int, rows: int, pads: int, method: str, way: str
) -> None:
    """The mask's length says that the ids are new ones, be they fewer, as many, or more than the cached columns."""
    cache, ids, mask = behind_a_cache(target, rows, cached, new, min(pads, cached - 1))
    call = dict(input_ids=ids[:, cached:], attention_mask=mask, max_new_tokens=9, do_sample=True)
    torch.manual_seed(0)
    theirs = target.generate(**call, past_key_values=copy.deepcopy(cache))
    torch.manual_seed(0)
    if way == "enable":
        with mmspec.enable(target, method):
            mine = target.generate(**call, past_key_values=cache)
    else:
        mine = target.generate(**call, past_key_values=cache, custom_generate=mmspec.custom_generate(method))
    assert torch.equal(mine, theirs)
    assert cache.get_seq_length() == cached + new + 9 - 1


@pytest.mark.thinned(1)
@pytest.mark.parametrize("cached, new", LENGTHS)
@pytest.mark.parametrize("mask", ["given", "none"])
def test_the_whole_text_and_its_cache(target: Any, cached: int, new: int, mask: str) -> None:
    cache, ids, ones = behind_a_cache(target, 2, cached, new, 0)
    given = {"input_ids": ids, **({"attention_mask": ones} if mask == "given" else {})}
    call = dict(**given, max_new_tokens=9, do_sample=False)
    theirs = target.generate(**call, past_key_values=copy.deepcopy(cache))
    with mmspec.enable(target, "prompt-lookup"):
        assert torch.equal(target.generate(**call, past_key_values=copy.deepcopy(cache)), theirs)
    decoder = Decoder(TransformersTarget(target))  # below transformers' `generate`, which passes on what it prepared
    units = decoder.generate({**given, "past_key_values": cache}, 9, warp=Warp(sample=False)).units
    assert torch.equal(torch.stack(list(units)), theirs[:, ids.shape[1] :])


@pytest.mark.parametrize(
    "ids, mask, says",
    [
        (slice(0, 10), slice(0, 10), "the prompt of 10 has nothing behind them"),
        (slice(10, 15), slice(10, 15), "the prompt of 5 has nothing behind them: pass the whole text"),
        (slice(10, 15), None, "the prompt of 5 has nothing behind them"),
        (
            slice(10, 15),
            slice(0, 13),
            r"13 columns; a prompt of 5, behind a cache of 10 columns, wants one of 5 .* or 15",
        ),
        (slice(0, 15), slice(0, 10), r"10 columns; a prompt of 15, behind a cache of 10 columns, wants one of 15"),
    ],
)
@pytest.mark.parametrize("sample", [True, False])
def test_lengths_of_no_conversation(target: Any, ids: slice, mask: slice | None, says: str, sample: bool) -> None:
    cache, text, ones = behind_a_cache(target, 1, 10, 5, 0)
    call = {"input_ids": text[:, ids], **({} if mask is None else {"attention_mask": ones[:, mask]})}
    with mmspec.enable(target, "prompt-lookup"), pytest.raises(ValueError, match=says):
        target.generate(**call, past_key_values=cache, max_new_tokens=3, do_sample=sample)
    assert cache.get_seq_length() == 10


def test_a_mask_longer_than_a_prompt_without_a_cache(target: Any, prompts: Callable) -> None:
    ids = prompts(1)["input_ids"]
    with mmspec.enable(target, "plain"), pytest.raises(ValueError, match="15 columns; a prompt of 14 wants one of 14"):
        target.generate(ids, attention_mask=torch.ones(1, 15).long(), max_new_tokens=3)


def test_a_cache_of_other_rows(target: Any) -> None:
    cache, ids, mask = behind_a_cache(target, 2, 10, 5, 0)
    with mmspec.enable(target, "plain"), pytest.raises(ValueError, match="turn of 2 prompts, and this call has 1"):
        target.generate(ids[:1, 10:], attention_mask=mask[:1], past_key_values=cache, max_new_tokens=3)


def test_a_calls_keys_are_freed_with_it(make_llama: Callable) -> None:
    """At once, and not when Python looks for cycles: drafters begin calls in every round."""
    target = TransformersTarget(make_llama())
    gc.disable()
    try:
        started = target.start(torch.arange(5, 25)[None], 9, 3)
        held = [weakref.ref(layer) for layer in started.cache.slots.owning]
        del started
        assert held and not [layer for layer in held if layer() is not None]
    finally:
        gc.enable()
