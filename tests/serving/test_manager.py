"""`mmspec serve` without its routes: limits, fields, the door, and transformers' manager with calls that speculate."""

import asyncio
import json
from typing import Any

import pytest
import torch
from transformers import GenerationConfig

from mmspec.api.build import decoder_for
from mmspec.api.enable import Enabled, learner_of
from mmspec.cli import serve
from mmspec.core.learning import Learning
from mmspec.core.sharing import SharingDecoder
from mmspec.serving import refuse_missing
from mmspec.serving.app import Managers
from mmspec.serving.door import Door
from mmspec.serving.fields import Chat, Completion, checked, settings_of
from mmspec.serving.limits import Limits
from mmspec.serving.models import Language, Models, load
from mmspec.serving.request import CURRENT, ClientGone, Request, UnknownModelError
from tests.support.serving import Leaving, Plain, ask, generator_state, language

LIMITS = Limits(body=100, prompt=50, new=40, pictures=2)


@pytest.fixture(scope="module")
def plain() -> Plain:
    return Plain("mmspec/text-1m")


def served(plain: Plain, **how: Any) -> tuple[Models, Managers]:
    models = Models({"m": language(plain.model, plain.tokenizer, **how)})
    return models, Managers(models, LIMITS)


async def one_call(plain: Plain, managers: Managers, prompt: str, seed: int | None, **settings: Any) -> list[int]:
    CURRENT.set(Request())
    CURRENT.get().seeded(seed)
    inputs = plain.tokenizer(prompt, return_tensors="pt", return_token_type_ids=False)
    how = GenerationConfig(**{"max_new_tokens": None, **settings})
    answer = await managers.get_manager("m").generate_non_streaming(plain.model, plain.tokenizer, inputs, how, "id")
    return answer[2].tolist()


def test_each_of_several_calls_writes_what_it_would_write_alone(plain: Plain) -> None:
    _, managers = served(plain, method="prompt-lookup")
    asked = [("def f(self", 3, 9), ("x = [1, 2, 3, 1, 2", 4, 20), ("def f(self", 5, 9)]
    sampling = {"do_sample": True, "temperature": 0.8}

    async def together() -> list[list[int]]:
        calls = [one_call(plain, managers, p, s, max_new_tokens=n, **sampling) for p, s, n in asked]
        return await asyncio.gather(*(asyncio.create_task(call) for call in calls))

    torch.manual_seed(0)
    before = generator_state()
    assert asyncio.run(together()) == [plain.ids(p, n, s, **sampling) for p, s, n in asked]
    assert generator_state() == before


def test_a_drafter_learns_from_answers_and_changes_none(plain: Plain) -> None:
    """Calls share passes; lessons run when all have ended."""
    decoder = decoder_for(plain.model, "draft-model", drafter="mmspec/text-1m", k=3)
    learner = learner_of(decoder, Learning(idle=True, rate=0.01, positions="emitted"))
    assert learner is not None
    weights = [weight.clone() for weight in learner.lesson.weights()]
    served = Language(plain.model, plain.tokenizer, SharingDecoder(decoder, 4), learner, rows=4)
    models = Models({"m": served})
    managers = Managers(models, LIMITS)
    asked = [("def f(self", 3, 20), ("x = [1, 2, 3, 1, 2", 4, 20), ("import os", 5, 20)]
    sampling = {"do_sample": True, "temperature": 0.8}

    async def together() -> list[list[int]]:
        calls = [one_call(plain, managers, p, s, max_new_tokens=n, **sampling) for p, s, n in asked]
        return await asyncio.gather(*(asyncio.create_task(call) for call in calls))

    expected = [plain.ids(p, n, s, **sampling) for p, s, n in asked]
    for _ in range(2):
        assert asyncio.run(together()) == expected
        learner.rest()
    assert learner.steps >= 2 and not learner.stopped
    assert any(not torch.equal(now, before) for now, before in zip(learner.lesson.weights(), weights, strict=True))
    models.shutdown()


@pytest.mark.parametrize(
    ("model", "method", "why"), [("mmspec/text-1m", "suffix", "cannot learn"), ("mmspec/emoji", "plain", "draws")]
)
def test_what_cannot_learn_is_refused(model: str, method: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        load(model, "cpu", None, None, {}, method=method, learn=True)


def test_a_call_without_a_seed_has_one_of_its_own(plain: Plain) -> None:
    _, managers = served(plain, method="plain")
    torch.manual_seed(0)
    before = generator_state()
    texts = [asyncio.run(one_call(plain, managers, "def", None, max_new_tokens=12, do_sample=True)) for _ in range(2)]
    assert texts[0] != texts[1]
    assert generator_state() == before


def test_a_refused_stream_is_refused_before_its_first_token(plain: Plain) -> None:
    _, managers = served(plain, method="prompt-lookup")

    async def refused() -> None:
        CURRENT.set(Request())
        inputs = plain.tokenizer("def", return_tensors="pt", return_token_type_ids=False)
        manager, how = managers.get_manager("m"), GenerationConfig(num_beams=2, max_new_tokens=3)
        manager.generate_streaming(plain.model, plain.tokenizer, inputs, how, "id")
        await CURRENT.get().begun()

    with pytest.raises(ValueError, match="beam search is not speculative"):
        asyncio.run(refused())


def test_what_fails_in_mid_stream_is_an_event_that_can_be_read(plain: Plain, monkeypatch: pytest.MonkeyPatch) -> None:
    _, managers = served(plain, method="plain")
    says = 'a "quoted" word and a \\ backslash'

    def generate(self: Enabled, streamer: Any, **arguments: Any) -> None:
        streamer.put(arguments["input_ids"])
        raise RuntimeError(says)

    monkeypatch.setattr(Enabled, "generate", generate)

    async def failed() -> Any:
        CURRENT.set(Request())
        inputs = plain.tokenizer("def", return_tensors="pt", return_token_type_ids=False)
        how = GenerationConfig(max_new_tokens=3)
        queue, _ = managers.get_manager("m").generate_streaming(plain.model, plain.tokenizer, inputs, how, "id")
        await CURRENT.get().begun()
        return await queue.get()

    event = json.loads(f'{{"error": "{asyncio.run(failed()).msg}"}}')  # as transformers writes it
    assert event["error"] == f"RuntimeError: {says}"


def test_decoding_stops_when_the_client_leaves(plain: Plain) -> None:
    drafter, ended = Leaving(4), []
    _, managers = served(plain, drafter=drafter)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        inputs = plain.tokenizer("def", return_tensors="pt", return_token_type_ids=False)
        manager, how = managers.get_manager("m"), GenerationConfig(max_new_tokens=40, eos_token_id=[])
        try:
            await manager.generate_non_streaming(plain.model, plain.tokenizer, inputs, how, "id")
        except ClientGone as error:
            ended.append(error)

    asyncio.run(ask(Door(app, LIMITS), b"{}", after=drafter.receive))
    assert len(ended) == 1
    assert drafter.asked == 4


def test_what_waits_for_a_client_that_has_left_is_not_begun(plain: Plain) -> None:
    drafter = Leaving(1)
    _, managers = served(plain, drafter=drafter)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        CURRENT.get().leave()
        inputs = plain.tokenizer("def", return_tensors="pt", return_token_type_ids=False)
        how = GenerationConfig(max_new_tokens=40)
        with pytest.raises(ClientGone):
            await managers.get_manager("m").generate_non_streaming(plain.model, plain.tokenizer, inputs, how, "id")

    asyncio.run(ask(Door(app, LIMITS), b"{}"))
    assert drafter.asked == 0


@pytest.mark.parametrize("headers", [((b"content-length", b"101"),), ()])
def test_a_body_that_is_too_large_is_not_answered(headers: tuple[tuple[bytes, bytes], ...]) -> None:
    async def app(*_: Any) -> None:
        raise AssertionError("this is not reached")

    status, text = asyncio.run(ask(Door(app, LIMITS), b" " * 101, headers=headers))
    assert status == 413
    assert "larger than 100 bytes" in json.loads(text)["error"]["message"]


@pytest.mark.parametrize(
    ("prompt", "wanted", "context", "says"),
    [
        (0, 1, None, "the prompt is empty"),
        (51, 1, None, "has 51 tokens and the server takes 50"),
        (20, 1, 20, "the model's context of 20 takes 19"),
        (5, 0, None, "max_tokens=0"),
        (5, 41, None, "at most 40"),
        (5, 16, 20, "ask for at most 15"),
    ],
)
def test_numbers_of_tokens_out_of_bounds(prompt: int, wanted: int, context: int | None, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        LIMITS.new_tokens(prompt, wanted, 1024, context)


def test_a_number_of_tokens_that_nobody_names_is_what_there_is_room_for() -> None:
    assert LIMITS.new_tokens(5, None, 1024, None) == 40
    assert LIMITS.new_tokens(5, None, 1024, 20) == 15
    assert LIMITS.new_tokens(5, None, 7, 20) == 7


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({"promt": "x"}, "did you mean 'prompt'"),
        ({"prompt": ["x", 1]}, "prompt"),
        ({"prompt": "x", "n": 0}, "n"),
        ({"prompt": "x", "best_of": 2}, "best_of=2 is not supported; it may be 1"),
        ({"prompt": "x", "temperature": float("nan")}, "temperature"),
        ({"prompt": "x", "seed": -1}, "seed"),
        ({"prompt": "x", "seed": 2**63}, "seed"),
        ({"prompt": "x", "stop": ["a"] * 17}, "at most 16"),
        ({"prompt": "x", "stop": [""]}, "none of them empty"),
        ({"prompt": "x", "max_tokens": "many"}, "max_tokens"),
    ],
)
def test_fields_that_are_refused(body: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        checked(Completion, body)


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({}, "messages is empty"),
        ({"messages": [{"content": "x"}]}, "no role"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "text alone"),
        ({"messages": [{"role": "user", "content": 3}]}, "content is a text"),
        ({"messages": [{"role": "assistant", "tool_calls": [{}]}]}, "a tool call is"),
        ({"messages": [{"role": "user", "content": "x"}], "chat_template_kwargs": {"chat_template": "x"}}, "server's"),
    ],
)
def test_messages_that_are_refused(body: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        checked(Chat, body)


def test_fields_that_ask_for_nothing_are_left_out() -> None:
    body = {"prompt": "x", "logprobs": False, "echo": False, "user": "me", "stop": None, "temperature": 0.5}
    assert checked(Completion, body) == {"prompt": "x", "temperature": 0.5}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{"num_beams": 4}', "beam search"),
        ('{"topk": 4}', "did you mean 'top_k'"),
        ('{"num_return_sequences": 4}', "setting of a request"),
        ('{"temperature": NaN}', "no number"),
        ("[1]", "JSON object"),
        ("{", "cannot be read as JSON"),
    ],
)
def test_settings_that_are_refused(text: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        settings_of(text)


def test_names_of_models(plain: Plain) -> None:
    models, _ = served(plain, method="plain")
    assert models.named(None, Language) == models.named("m", Language) == "m"
    assert [each["id"] for each in models.get_gen_models()] == ["m"]
    with pytest.raises(UnknownModelError, match="There is: m"):
        models.named("n", Language)
    with pytest.raises(UnknownModelError, match="draws pictures; there is m"):
        models.named(None, int)


def test_a_command_says_what_is_missing() -> None:
    with pytest.raises(ValueError, match=r"needs no_such_package: pip install 'mmspec\[serve\]'"):
        refuse_missing("mmspec serve", ("json", "no_such_package"), "serve")


@pytest.mark.parametrize(
    ("models", "methods", "says"),
    [
        (["a", "b", "c"], ["plain", "auto"], "2 methods for 3"),
        (["a", "a"], ["plain"], "twice"),
        (["a"], ["x"], "no method"),
    ],
)
def test_models_and_methods_that_do_not_match(models: list[str], methods: list[str], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        serve.with_methods(models, methods)


def test_what_bypasses_generate_is_refused() -> None:
    with pytest.raises(ValueError, match="nothing would speculate"):
        serve.refuse_bypass(True)
