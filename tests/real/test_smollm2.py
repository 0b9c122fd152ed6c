"""A model that people run: SmolLM2-135M-Instruct, which `mmspec fetch smollm2` brings (make test-real).

Every promise of the README on it: the tokens of unmodified `generate`, greedy and sampled, for one question and for six
of several lengths; over turns with a kept cache; streamed from a thread; stopped; in bfloat16 under one shape; in the
terminal, and over HTTP.
"""

import threading
import warnings
from functools import cache
from pathlib import Path
from typing import Any

import openai
import pytest
import torch
from torch import Tensor
from transformers import DynamicCache, TextIteratorStreamer
from typer.testing import CliRunner

import mmspec
from mmspec.api.build import decoder_for
from mmspec.cli.app import build
from mmspec.compare.equality import assert_same, stock
from mmspec.core.decoder import Decoder
from mmspec.core.warp import Warp
from mmspec.hosts.loading import load_model, load_tokenizer
from tests.support.serving import server

pytestmark = pytest.mark.real

NAME = "smollm2"
METHODS = ("plain", "prompt-lookup", "suffix", "token-recycling", "auto", "lookahead", "layer-skip")
CALLS: dict[str, dict[str, Any]] = {
    "greedy": {"do_sample": False},
    "sampled": {"do_sample": True, "temperature": 0.7},
    "narrowed": {"do_sample": True, "temperature": 1.0, "top_k": 20, "top_p": 0.9, "repetition_penalty": 1.1},
}
QUESTIONS = (
    "What is the capital of France?",
    "Write a Python function that reverses a list in place, and explain each line.",
    "Repeat this word for word: the quick brown fox jumps over the lazy dog, the quick brown fox jumps again.",
    "Tom has 3 boxes of 12 pencils and gives 7 pencils away. How many are left?",
    "Translate into French: Good morning, my friends.",
    "Hi!",
)


@cache
def model(dtype: torch.dtype = torch.float32) -> Any:
    return load_model(NAME, dtype=dtype)


@cache
def tokenizer() -> Any:
    loaded = load_tokenizer(NAME)
    loaded.padding_side = "left"
    return loaded


def chat(*questions: str) -> dict[str, Tensor]:
    asked = [[{"role": "user", "content": question}] for question in questions]
    how = {"add_generation_prompt": True, "padding": True, "return_dict": True, "return_tensors": "pt"}
    return dict(tokenizer().apply_chat_template(asked, **how))


@cache
def unmodified(questions: tuple[str, ...], call: str, new: int) -> Any:
    return stock(model(), chat(*questions), 0, max_new_tokens=new, **CALLS[call])


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("rows", [1, 6])
@pytest.mark.parametrize("method", METHODS)
def test_the_tokens_of_unmodified_generate(method: str, rows: int, call: str) -> None:
    batches, new = ([QUESTIONS], 24) if rows == 6 else ([QUESTIONS[i : i + 1] for i in (1, 2)], 48)
    for questions in batches:
        theirs = unmodified(questions, call, new)
        with mmspec.enable(model(), method) as spec:
            torch.manual_seed(0)
            ids = model().generate(**chat(*questions), max_new_tokens=new, **CALLS[call])
            state = torch.get_rng_state()
        for tie in assert_same(ids, theirs, state):
            print(tie)
        assert spec.report is not None and not spec.report.faults


def test_drafts_are_accepted_where_the_text_repeats_itself() -> None:
    """Without the policy of `auto`, which follows the clock."""
    with mmspec.enable(model(), "token-recycling", nodes=16) as spec:
        model().generate(**chat(QUESTIONS[2]), max_new_tokens=48, do_sample=False)
    assert spec.report is not None and spec.report.acceptance_length > 1.5


@pytest.mark.parametrize("call", ["greedy", "sampled"])
def test_turns_with_a_kept_cache(call: str) -> None:
    def talk() -> list[list[int]]:
        torch.manual_seed(0)
        kept, messages, said = DynamicCache(), list[dict[str, str]](), list[list[int]]()
        for question in (QUESTIONS[3], "And if he gives 5 more away?", "Thank you!"):
            messages.append({"role": "user", "content": question})
            ids = tokenizer().apply_chat_template(
                messages, add_generation_prompt=True, return_dict=True, return_tensors="pt"
            )
            whole = model().generate(**ids, past_key_values=kept, max_new_tokens=24, **CALLS[call])
            said.append(whole[0, ids["input_ids"].shape[1] :].tolist())
            messages.append({"role": "assistant", "content": tokenizer().decode(said[-1], skip_special_tokens=True)})
        return said

    theirs = talk()
    with mmspec.enable(model(), "suffix"):
        assert talk() == theirs


def test_a_streamer_in_a_thread_and_stop_strings() -> None:
    def streamed() -> str:
        streamer = TextIteratorStreamer(tokenizer(), skip_prompt=True)
        how = {"max_new_tokens": 64, "do_sample": False, "stop_strings": ["."], "tokenizer": tokenizer()}
        call = threading.Thread(target=model().generate, kwargs={**chat(QUESTIONS[3]), **how, "streamer": streamer})
        call.start()
        text = "".join(streamer)
        call.join()
        return text

    theirs = streamed()
    with mmspec.enable(model(), "prompt-lookup"):
        assert streamed() == theirs and "." in theirs


@pytest.mark.parametrize("method", ["prompt-lookup", "suffix", "token-recycling"])
def test_one_shape_in_bfloat16(method: str) -> None:
    decoder = decoder_for(model(torch.bfloat16), method, shape="one", k=5)
    plain = Decoder(decoder.target, shape=decoder.one_width())
    call: dict[str, Any] = {"seed": 3, "warp": Warp.sampling(temperature=0.7)}
    found, right = (each.generate(chat(QUESTIONS[2]), 24, **call) for each in (decoder, plain))
    assert torch.equal(found.units[0], right.units[0])
    assert found.report.shape == f"to the bit with plain of width {decoder.one_width()}"


def test_compiled_in_bfloat16() -> None:
    """Nothing falls back to the eager loop, and drafts of a head change no bit of plain's text."""
    eagle = decoder_for(
        model(torch.bfloat16), "eagle", drafter="mmspec/smollm2-eagle3", k=2, options={"form": "chain"}, compile=True
    )
    plain = Decoder(eagle.target, shape=eagle.one_width(), compile=True)
    call: dict[str, Any] = {"seed": 3, "warp": Warp.sampling(temperature=0.7)}
    with warnings.catch_warnings():
        warnings.filterwarnings("error", ".*(eager|captured)")
        found, right = (each.generate(chat(QUESTIONS[1]), 24, **call) for each in (eagle, plain))
    assert found.report.compiled and right.report.compiled and torch.equal(found.units[0], right.units[0])


def test_in_the_terminal() -> None:
    said = "What is the capital of France? Answer in one sentence.\n/exit\n"
    result = CliRunner().invoke(build(), ["chat", NAME, "--temperature", "0", "--max-new-tokens", "24"], input=said)
    assert result.exit_code == 0 and "Paris" in result.stdout


def test_over_http(tmp_path: Path) -> None:
    theirs = stock(model(), chat(QUESTIONS[3]), 0, max_new_tokens=24, do_sample=False).ids[0]
    with server(tmp_path, NAME, "--method", "suffix", template=None) as (url, _):
        client = openai.OpenAI(base_url=url, api_key="none", max_retries=0, timeout=300)
        asked: Any = [{"role": "user", "content": QUESTIONS[3]}]
        said = client.chat.completions.create(model=NAME, messages=asked, max_tokens=24, temperature=0)
    new = theirs[chat(QUESTIONS[3])["input_ids"].shape[1] :]
    assert said.choices[0].message.content == tokenizer().decode(new, skip_special_tokens=True)
