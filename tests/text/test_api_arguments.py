"""Further arguments of `generate`, forms of the prompt, and streamers behave as without mmspec."""

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import DynamicCache, GenerationConfig, TextIteratorStreamer

import mmspec
from mmspec.compare.equality import assert_same, stock

ENDS = [17, 40, 41, 63, 77]
CALLS: dict[str, dict[str, Any]] = {
    "nothing": {},
    "max_new_tokens 1": dict(max_new_tokens=1),
    "max_length": dict(max_length=30),
    "one end": dict(eos_token_id=41, max_new_tokens=25),
    "ends": dict(eos_token_id=ENDS, max_new_tokens=25),
    "min_new_tokens": dict(eos_token_id=ENDS, min_new_tokens=12, max_new_tokens=25),
    "num_return_sequences": dict(num_return_sequences=3, eos_token_id=ENDS),
    "max_time": dict(max_time=900.0),
    "use_cache": dict(use_cache=False),
    "static cache": dict(cache_implementation="static"),
    "dynamic cache": dict(cache_implementation="dynamic"),
    "another padding": dict(eos_token_id=ENDS, pad_token_id=9),
    "prefill_chunk_size": dict(prefill_chunk_size=4),
    "nothing asked for": dict(output_attentions=False, output_hidden_states=False, synced_gpus=False, num_beams=1),
}


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.compiled("history")
def test_arguments(target: Any, good: Any, prompts: Callable, ours: Callable, name: str) -> None:
    for seed, spec in enumerate(({"method": "prompt-lookup"}, {"drafter": good, "k": 4})):
        call = {"do_sample": True, "top_k": 0, **CALLS[name]}
        run = stock(target, prompts(3, seed), seed, **call)
        mine = ours(target, prompts(3, seed), seed, spec, **call)
        assert_same(mine.ids, run, mine.state)


@pytest.mark.thinned(1)
@pytest.mark.parametrize(
    "settings",
    [
        dict(do_sample=True, top_k=30, temperature=0.7, max_new_tokens=15, eos_token_id=ENDS, pad_token_id=0),
        dict(do_sample=False, repetition_penalty=1.3, max_length=35),
        dict(do_sample=True, top_k=0, max_length=20, num_return_sequences=2, bad_words_ids=[[30], [31, 32]]),
    ],
)
@pytest.mark.compiled("history")
def test_a_configuration_as_an_object(
    target: Any, prompts: Callable, spec: dict[str, Any], settings: dict[str, Any]
) -> None:
    config = GenerationConfig(**settings)
    before = config.to_dict()
    torch.manual_seed(2)
    theirs = target.generate(**prompts(3), generation_config=config)
    with mmspec.enable(target, **spec):
        torch.manual_seed(2)
        assert torch.equal(target.generate(**prompts(3), generation_config=config), theirs)
    torch.manual_seed(2)
    decoding = mmspec.custom_generate(**spec)
    assert torch.equal(target.generate(**prompts(3), generation_config=config, custom_generate=decoding), theirs)
    assert config.to_dict() == before


FORMS: dict[str, Callable[[Any, Tensor, Tensor], dict[str, Any]]] = {
    "inputs": lambda model, ids, mask: dict(inputs=ids, attention_mask=mask),
    "no mask: padding is seen in the ids": lambda model, ids, mask: dict(input_ids=ids),
    "boolean mask": lambda model, ids, mask: dict(input_ids=ids, attention_mask=mask.bool()),
    "positions": lambda model, ids, mask: dict(
        input_ids=ids, attention_mask=mask, position_ids=(mask.cumsum(1) - 1).clamp(min=0)
    ),
    "no prompt": lambda model, ids, mask: dict(bos_token_id=3),
    "no prompt, several times": lambda model, ids, mask: dict(bos_token_id=3, num_return_sequences=3),
    "an empty cache": lambda model, ids, mask: dict(
        input_ids=ids, attention_mask=mask, past_key_values=DynamicCache(config=model.config)
    ),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.compiled
def test_forms_of_a_prompt(target: Any, prompts: Callable, form: str) -> None:
    given = prompts(3)
    call = dict(do_sample=True, top_k=0, max_new_tokens=15, eos_token_id=ENDS)

    def run() -> Tensor:
        torch.manual_seed(1)
        ids: Tensor = target.generate(**FORMS[form](target, given["input_ids"], given["attention_mask"]), **call)
        return ids

    theirs = run()
    with mmspec.enable(target, "prompt-lookup"):
        assert torch.equal(run(), theirs)


@pytest.mark.compiled
def test_arguments_by_position(target: Any, prompts: Callable) -> None:
    ids, config = prompts(1)["input_ids"], GenerationConfig(max_new_tokens=9, do_sample=False)
    theirs = target.generate(ids, config)
    with mmspec.enable(target, "prompt-lookup"):
        assert torch.equal(target.generate(ids, config), theirs)


@pytest.mark.compiled
def test_a_model_without_padding(make_llama: Callable, prompts: Callable, ours: Callable) -> None:
    """transformers pads with the first end token; without end tokens no row is shorter."""
    for ends in (ENDS, None):
        model = make_llama(pad_token_id=None)
        call = dict(do_sample=True, top_k=0, max_new_tokens=20, eos_token_id=ends)
        run = stock(model, prompts(3), 0, **call)
        mine = ours(model, prompts(3), 0, {"method": "prompt-lookup"}, **call)
        assert_same(mine.ids, run, mine.state)


class Words:
    """A tokenizer for streamers: every id is a word."""

    def decode(self, ids: Any, **kwargs: Any) -> str:
        return "".join(f"<{int(i)}> " for i in ids)


@pytest.mark.parametrize("face", ["enable", "custom_generate"])
def test_a_text_iterator_in_a_thread(target: Any, good: Any, prompts: Callable, face: str) -> None:
    call = dict(do_sample=False, max_new_tokens=25)
    expected = target.generate(**prompts(1), **call)
    streamer = TextIteratorStreamer(Words(), skip_prompt=True)  # type: ignore[arg-type]
    if face == "enable":
        enabled = mmspec.enable(target, drafter=good, k=4)
        given: dict[str, Any] = {"streamer": streamer}
    else:
        given = {"custom_generate": mmspec.custom_generate(drafter=good, k=4, streamer=streamer)}

    def work() -> None:
        try:
            target.generate(**prompts(1), **call, **given)
        finally:
            streamer.end()  # a reader of the stream waits for its end, after a failure, too

    worker = threading.Thread(target=work)
    worker.start()
    pieces = list(streamer)
    worker.join()
    if face == "enable":
        enabled.disable()
    assert "".join(pieces) == Words().decode(expected[0, 14:])
    assert len([p for p in pieces if p]) == 25, "one token at a time"
