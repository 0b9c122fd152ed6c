"""Caches that users bring: plain ones are read and filled, all others are refused by name before anything runs."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from transformers import Cache, DynamicCache, EncoderDecoderCache, StaticCache
from transformers.cache_utils import DynamicLayer

import mmspec
from mmspec.compare.equality import assert_same
from mmspec.core.decoder import Decoder
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
    call = dict(**prompts(1), past_key_values=make(target.config), max_new_tokens=4, do_sample=False)
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
