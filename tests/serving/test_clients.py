"""The habits of OpenAI's own client: several texts, log-probabilities, JSON, tools, sampling, and refusals by name."""

import asyncio
import json
from collections.abc import Callable
from typing import Any, Literal

import httpx2
import openai
import pytest
import torch
from pydantic import BaseModel, Field
from transformers import LogitsProcessor

from mmspec.api.build import decoder_for
from mmspec.api.enable import Enabled
from mmspec.core.matchers import LlguidanceMatcher
from mmspec.core.sharing import SharingDecoder
from mmspec.serving.app import application
from mmspec.serving.fields import seed_of
from mmspec.serving.limits import Limits
from mmspec.serving.models import Language, Models
from tests.support.serving import CHAT, LOOP, Plain, language

MODEL, PROMPT = "mmspec/text-1m", "def __init__(self, name, value):\n    self.name = name\n"
SAID = [{"role": "user", "content": PROMPT.removesuffix("\n")}]  # the template ends each message with a line
ASKED = {"model": MODEL, "max_tokens": 24, "temperature": 0.8, "seed": 7}
DRAWN = {"do_sample": True, "temperature": 0.8}
App = Callable[..., Any]
Ask = Callable[[openai.AsyncOpenAI], Any]


@pytest.fixture(scope="module")
def plain() -> Plain:
    plain = Plain(MODEL)
    plain.tokenizer.chat_template = CHAT
    return plain


@pytest.fixture(scope="module")
def app(plain: Plain) -> App:
    return application(Models({MODEL: language(plain.model, plain.tokenizer, method="suffix")}), Limits())


@pytest.fixture(scope="module")
def shared(plain: Plain) -> App:
    """The same, with calls that share passes."""
    decoder = SharingDecoder(decoder_for(plain.model, "prompt-lookup"), 4)
    return application(Models({MODEL: Language(plain.model, plain.tokenizer, decoder, rows=4)}), Limits())


def asked(app: App, ask: Ask) -> Any:
    """What a client gets."""

    async def run() -> Any:
        transport = httpx2.AsyncClient(transport=httpx2.ASGITransport(app))
        client = openai.AsyncOpenAI(base_url="http://here/v1", api_key="none", http_client=transport, max_retries=0)
        async with client:
            return await ask(client)

    return LOOP.run(run())


def completion(app: App, **fields: Any) -> Any:
    return asked(app, lambda client: client.completions.create(**{**ASKED, "prompt": PROMPT, **fields}))


def chat(app: App, **fields: Any) -> Any:
    return asked(app, lambda client: client.chat.completions.create(**{**ASKED, "messages": SAID, **fields}))


def chunks(app: App, kind: str, **fields: Any) -> list[Any]:
    """The parts of a stream."""
    given = {"messages": SAID} if kind == "chat" else {"prompt": PROMPT}

    async def ask(client: openai.AsyncOpenAI) -> list[Any]:
        made = client.chat.completions if kind == "chat" else client.completions
        return [part async for part in await made.create(**{**ASKED, **given, **fields}, stream=True)]

    return asked(app, ask)


def test_models_are_listed_and_retrieved(app: App) -> None:
    listed = asked(app, lambda client: client.models.list())
    assert [model.id for model in listed.data] == [MODEL]
    assert asked(app, lambda client: client.models.retrieve(MODEL)) == listed.data[0]
    with pytest.raises(openai.NotFoundError, match="did you mean 'mmspec/text-1m'"):
        asked(app, lambda client: client.models.retrieve("mmspec/text-2m"))


def test_each_of_n_choices_is_the_text_of_a_seed_of_its_own(app: App, plain: Plain) -> None:
    said = completion(app, n=3)
    right = [plain.ids(PROMPT, 24, seed_of(7, number), **DRAWN) for number in range(3)]
    assert [choice.text for choice in said.choices] == [plain.text(ids) for ids in right]
    assert [choice.index for choice in said.choices] == [0, 1, 2]
    assert len({choice.text for choice in said.choices}) == 3
    alone = completion(app)
    assert alone.choices[0] == said.choices[0]
    assert said.usage.prompt_tokens == alone.usage.prompt_tokens
    assert said.usage.completion_tokens == sum(map(len, right))
    assert completion(app, n=3).choices == said.choices


@pytest.mark.parametrize("kind", ["chat", "completion"])
def test_n_choices_as_a_stream(app: App, kind: str) -> None:
    whole = (chat if kind == "chat" else completion)(app, n=3)
    *parts, last = chunks(app, kind, n=3, stream_options={"include_usage": True})
    for choice in whole.choices:
        own = [part.choices[0] for part in parts if part.choices[0].index == choice.index]
        texts = [(part.delta.content if kind == "chat" else part.text) or "" for part in own]
        assert "".join(texts) == (choice.message.content if kind == "chat" else choice.text)
        assert [part.finish_reason for part in own if part.finish_reason] == [choice.finish_reason]
    assert {part.id for part in parts} == {last.id}
    assert last.choices == [] and last.usage == whole.usage


def test_a_list_of_prompts_and_prompts_of_tokens(app: App) -> None:
    prompts = [PROMPT, "import os\n"]
    alone = [completion(app, prompt=prompt) for prompt in prompts]
    texts = [said.choices[0].text for said in alone]
    both = completion(app, prompt=prompts)
    assert [choice.text for choice in both.choices] == texts
    assert both.usage.prompt_tokens == sum(said.usage.prompt_tokens for said in alone)
    assert [choice.text for choice in completion(app, prompt=prompts, n=2).choices][::2] == texts


def test_prompts_of_tokens(app: App, plain: Plain) -> None:
    ids = [plain.tokenizer(prompt)["input_ids"] for prompt in (PROMPT, "import os\n")]
    both = completion(app, prompt=ids)
    assert [choice.text for choice in both.choices] == [completion(app, prompt=each).choices[0].text for each in ids]
    assert both.choices[0].text == completion(app).choices[0].text
    assert both.usage.prompt_tokens == sum(map(len, ids))
    with pytest.raises(openai.BadRequestError, match="4096 is no token of this model"):
        completion(app, prompt=[1, 4096])


def test_equal_prompts_without_a_seed_have_texts_of_their_own(app: App) -> None:
    said = completion(app, prompt=[PROMPT, PROMPT], seed=None, temperature=1.5)
    assert said.choices[0].text != said.choices[1].text


def test_usage_says_what_drafts_did(app: App) -> None:
    details = completion(app, temperature=0, max_tokens=60).usage.completion_tokens_details
    assert details.accepted_prediction_tokens > 0 and details.rejected_prediction_tokens >= 0
    assert 0 < details.passes < 59 <= details.accepted_prediction_tokens + details.passes
    assert completion(app, n=2).usage.completion_tokens_details.passes > 0


def scores_of(plain: Plain, new: int) -> tuple[list[int], torch.Tensor]:
    """The plain text's tokens and log-probabilities `[token, vocab]`."""
    given = plain.tokenizer(PROMPT, return_tensors="pt", return_token_type_ids=False)
    alone = Enabled(plain.model, plain.decoder, 7, "philox")
    made = alone.generate(**given, **DRAWN, max_new_tokens=new, return_dict_in_generate=True, output_logits=True)
    ids = made.sequences[0, given["input_ids"].shape[1] :].tolist()
    return ids, torch.cat(made.logits).log_softmax(-1)


def near(values: list[float]) -> Any:
    """Passes of other widths round otherwise."""
    return pytest.approx(values, abs=2e-5)


def test_log_probabilities_of_a_chat_are_plain_decodings(app: App, plain: Plain) -> None:
    ids, right = scores_of(plain, 24)
    content = chat(app, logprobs=True, top_logprobs=3).choices[0].logprobs.content
    assert [each.token for each in content] == [plain.tokenizer.decode([i]) for i in ids]
    assert [each.logprob for each in content] == near([float(r[i]) for r, i in zip(right, ids, strict=True)])
    best = right.topk(3)
    for each, values, tops in zip(content, best.values.tolist(), best.indices.tolist(), strict=True):
        assert [top.logprob for top in each.top_logprobs] == near(values)
        assert [top.token for top in each.top_logprobs] == [plain.tokenizer.decode([i]) for i in tops]
        assert bytes(each.bytes).decode() == each.token
    parts = [part.choices[0] for part in chunks(app, "chat", logprobs=True, top_logprobs=3)]
    streamed = [each for part in parts if part.logprobs for each in part.logprobs.content]
    assert [each.token for each in streamed] == [each.token for each in content]
    assert [each.logprob for each in streamed] == near([each.logprob for each in content])
    assert all(each.top_logprobs == [] for each in chat(app, logprobs=True).choices[0].logprobs.content)


def test_log_probabilities_of_a_completion(app: App, plain: Plain) -> None:
    ids, right = scores_of(plain, 24)
    said = completion(app, logprobs=2).choices[0].logprobs
    assert said.tokens == [plain.tokenizer.decode([i]) for i in ids]
    assert said.token_logprobs == near([float(r[i]) for r, i in zip(right, ids, strict=True)])
    assert all(
        2 <= len(top) <= 3 and top[token] in said.token_logprobs
        for top, token in zip(said.top_logprobs, said.tokens, strict=True)
    )
    assert [said.text_offset[i + 1] - said.text_offset[i] for i in range(23)] == [len(t) for t in said.tokens[:-1]]
    parts = [part.choices[0].logprobs for part in chunks(app, "completion", logprobs=2)]
    assert [offset for part in parts for offset in part.text_offset] == said.text_offset
    assert [token for part in parts for token in part.tokens] == said.tokens
    assert completion(app).choices[0].logprobs is None


class Weather(BaseModel):
    """What the model has to say."""

    sky: Literal["clear", "cloudy"]
    degrees: int = Field(ge=-40, le=60)
    windy: bool


def test_a_schema_is_kept_to(app: App) -> None:
    def ask(client: openai.AsyncOpenAI) -> Any:
        return client.chat.completions.parse(**{**ASKED, "max_tokens": 80}, messages=SAID, response_format=Weather)

    for said in (asked(app, ask), asked(app, ask)):
        assert isinstance(said.choices[0].message.parsed, Weather)
        assert said.choices[0].finish_reason == "stop"


def test_an_object_of_json(app: App) -> None:
    said = chat(app, max_tokens=300, response_format={"type": "json_object"}, seed=3)
    text = said.choices[0].message.content
    assert text.startswith("{")
    assert said.choices[0].finish_reason == "length" or isinstance(json.loads(text), dict)
    assert chat(app, response_format={"type": "text"}).choices == chat(app).choices


@pytest.mark.parametrize(
    ("wanted", "says"),
    [
        ({"type": "xml"}, "type is text, json_object or json_schema, not xml"),
        ({"type": "json_schema"}, "with a schema"),
        ({"type": "json_schema", "json_schema": {"schema": {"enum": []}}}, "Unsatisfiable schema"),
        ({"type": "json_schema", "json_schema": {"schema": {"type": "wrong"}}}, "Invalid type"),
        ({"type": "json_schema", "json_schema": {"schema": {"type": "string", "pattern": "("}}}, "unclosed group"),
    ],
)
def test_schemas_that_are_refused(app: App, wanted: dict[str, Any], says: str) -> None:
    with pytest.raises(openai.BadRequestError, match=says):
        chat(app, response_format=wanted)


def test_a_schema_on_which_the_library_gives_up_is_not_half_an_answer(app: App) -> None:
    every = [{"type": "object", "properties": {f"k{i}{j}": {"type": "integer"} for j in range(99)}} for i in range(60)]
    wanted = {"type": "json_schema", "json_schema": {"schema": {"anyOf": every}}}
    with pytest.raises(openai.BadRequestError, match="response_format: no token"):
        completion(app, extra_body={"response_format": wanted})


@pytest.mark.parametrize("first", [0, 5])
@pytest.mark.parametrize("name", ["app", "shared"])
def test_a_grammar_that_no_token_fits(
    name: str, first: int, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """Neither at the beginning nor later: that request ends with the reason, and others go on."""
    app = request.getfixturevalue(name)
    real, left = LlguidanceMatcher.allowed, [first]

    def allowed(self: LlguidanceMatcher) -> torch.Tensor | None:
        left[0] -= 1
        return real(self) if left[0] >= 0 else torch.zeros(4096, dtype=torch.bool)

    monkeypatch.setattr(LlguidanceMatcher, "allowed", allowed)
    wanted = {"type": "json_object"}
    right = completion(app).choices

    async def ask(client: openai.AsyncOpenAI) -> list[Any]:
        other = client.completions.create(**ASKED, prompt=PROMPT)
        bad = client.completions.create(**ASKED, prompt=PROMPT, extra_body={"response_format": wanted})
        return await asyncio.gather(bad, other, return_exceptions=True)

    bad, other = asked(app, ask)
    assert isinstance(bad, openai.BadRequestError) and "no token of the model's goes on" in str(bad)
    assert other.choices == right
    left[0] = first
    with pytest.raises(openai.APIError, match="no token of the model's goes on"):
        chunks(app, "completion", extra_body={"response_format": wanted})
    assert completion(app).choices == right


@pytest.mark.parametrize("more", [{"top_k": 5}, {"min_p": 0.2}, {"repetition_penalty": 1.3}])
def test_fields_of_vllm(app: App, plain: Plain, more: dict[str, Any]) -> None:
    right = plain.text(plain.ids(PROMPT, 24, 7, **DRAWN, **more))
    assert completion(app, extra_body=more).choices[0].text == right
    assert right != completion(app).choices[0].text
    assert completion(app, extra_body={"top_k": -1, "min_p": 0}).choices == completion(app).choices


class Penalties(LogitsProcessor):
    """OpenAI's penalties, token by token."""

    def __init__(self, prompt: int, presence: float, frequency: float) -> None:
        self.prompt, self.presence, self.frequency = prompt, presence, frequency

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        written, scores = input_ids[0, self.prompt :].tolist(), scores.clone()
        for token in set(written):
            scores[0, token] -= self.presence + self.frequency * written.count(token)
        return scores


@pytest.mark.parametrize("given", [{"presence_penalty": 1.5}, {"frequency_penalty": 0.7}])
def test_penalties(app: App, plain: Plain, given: dict[str, Any]) -> None:
    asked = plain.tokenizer(PROMPT, return_tensors="pt", return_token_type_ids=False)
    size = asked["input_ids"].shape[1]
    own = Penalties(size, given.get("presence_penalty", 0), given.get("frequency_penalty", 0))
    right = plain.model.generate(**asked, max_new_tokens=60, do_sample=False, logits_processor=[own])[0, size:]
    how = {"temperature": 0, "max_tokens": 60}
    said = completion(app, **how, **given)
    assert said.choices[0].text == plain.text(right.tolist())
    assert said.choices != completion(app, **how).choices
    assert said.usage.completion_tokens_details.accepted_prediction_tokens > 0


def test_a_bias_of_tokens(app: App, plain: Plain) -> None:
    for ask in (completion, chat):
        said = ask(app, logit_bias={"37": 100}, max_tokens=5).choices[0]
        assert (said.text if ask is completion else said.message.content) == plain.tokenizer.decode([37] * 5)


CALL = '{"name": "weather", "arguments": {"city": "Oslo"}}'
TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}}}]
CALLS = {
    "defaults": {"role": "assistant"},
    "start_anchor": "assistant:",
    "fields": {
        "tool_calls": {
            "open_pattern": r"\s*<tool_call>",
            "close": "</tool_call>",
            "repeats": True,
            "content": "json",
            "transform": {"type": "function", "function": "{content}"},
        },
        "content": {"content": "text"},
    },
}


@pytest.fixture
def with_tools(monkeypatch: pytest.MonkeyPatch) -> App:
    """A model whose chat template reads tools, and that always calls one."""
    plain = Plain(MODEL)
    plain.tokenizer.chat_template = "{% for tool in tools %}{{ tool.function.name }} {% endfor %}" + CHAT + "assistant:"
    plain.tokenizer.response_template = CALLS
    ids = plain.tokenizer(f"Look.<tool_call>{CALL}</tool_call>", return_tensors="pt")["input_ids"][0]

    def generate(self: Enabled, input_ids: torch.Tensor, streamer: Any, **_: Any) -> torch.Tensor:
        assert plain.tokenizer.decode(input_ids[0]).startswith("weather ")
        streamer.put(input_ids)
        for token in ids.split(1):
            streamer.put(token)
        return torch.cat([input_ids[0], ids])[None]

    monkeypatch.setattr(Enabled, "generate", generate)
    return application(Models({MODEL: language(plain.model, plain.tokenizer, method="plain")}), Limits())


def test_calls_of_tools_are_parsed(with_tools: App) -> None:
    choice = chat(with_tools, tools=TOOLS, tool_choice="auto").choices[0]
    assert choice.finish_reason == "tool_calls" and choice.message.content == "Look."
    (call,) = choice.message.tool_calls
    assert call.function.name == "weather" and json.loads(call.function.arguments) == {"city": "Oslo"}
    parts = [part.choices[0] for part in chunks(with_tools, "chat", tools=TOOLS)]
    assert "".join(part.delta.content or "" for part in parts) == "Look."
    (streamed,) = [call for part in parts for call in part.delta.tool_calls or ()]
    assert streamed.function.name == "weather" and streamed.function.arguments == call.function.arguments
    assert parts[-1].finish_reason == "tool_calls"


def test_tools_that_the_model_cannot_use_are_refused(app: App) -> None:
    with pytest.raises(openai.BadRequestError, match=r"tools are not supported by mmspec/text-1m: its chat template"):
        chat(app, tools=TOOLS)
    with pytest.raises(openai.BadRequestError, match="tool_choice='required' is not supported"):
        chat(app, tools=TOOLS, tool_choice="required")
    assert chat(app, tools=TOOLS, tool_choice="none").choices == chat(app).choices


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"extra_body": {"guided_regex": "a"}}, "guided_regex"),
        ({"extra_body": {"top_q": 3}}, "did you mean 'top_p' or 'top_k'"),
        ({"n": 17}, "1 prompts with n=17: one request gets 1 to 16 texts"),
        ({"prompt": ["a"] * 9, "n": 2}, "9 prompts with n=2"),
        ({"best_of": 2}, "best_of=2 is not supported"),
        ({"echo": True}, "echo=True is not supported"),
        ({"suffix": "x"}, "suffix='x' is not supported"),
        ({"temperature": "hot"}, "'temperature' is 'hot', allowed is float >= 0, <= 1000"),
        ({"prompt": {"a": 1}}, "'prompt' is"),
        ({"prompt": []}, "the prompt is empty"),
        ({"prompt": ["a", ""]}, "the prompt is empty"),
        ({"n": "many"}, "'n' is 'many'"),
        ({"logprobs": 21}, "'logprobs' is 21, allowed is int >= 0, <= 20"),
        ({"logit_bias": {"x": 1}}, "logit_bias"),
        ({"logit_bias": {"1": 200}}, "logit_bias"),
        ({"presence_penalty": 3}, "presence_penalty"),
        ({"stream_options": {"x": True}}, "stream_options"),
        ({"extra_body": {"seed": "x"}}, "'seed' is 'x'"),
        ({"extra_body": {"stop": {"a": 1}}}, "'stop' is"),
        ({"extra_body": {"top_k": 1.5}}, "'top_k' is 1.5"),
        ({"extra_body": {"max_tokens": []}}, "'max_tokens' is"),
        ({"prompt": "word " * 3000}, "the model's context of 1024 takes 1023; shorten it"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_what_is_refused(app: App, fields: dict[str, Any], says: str, stream: bool) -> None:
    with pytest.raises(openai.BadRequestError, match=says):
        completion(app, **fields, stream=stream)


def test_many_clients_at_once_get_what_each_gets_alone(app: App) -> None:
    seeds = range(6)
    alone = [completion(app, seed=seed).choices for seed in seeds]

    async def ask(client: openai.AsyncOpenAI) -> Any:
        calls = [client.completions.create(**{**ASKED, "prompt": PROMPT, "seed": seed}) for seed in seeds]
        return await asyncio.gather(*calls)

    assert [said.choices for said in asked(app, ask)] == alone


def test_requests_of_all_kinds_share_passes(app: App, shared: App) -> None:
    schema = {"type": "json_schema", "json_schema": {"schema": Weather.model_json_schema()}}
    kinds: list[dict[str, Any]] = [
        {"n": 3},
        {"temperature": 0, "presence_penalty": 1.5},
        {"extra_body": {"top_k": 5}},
        {"extra_body": {"response_format": schema}, "max_tokens": 80},
        {"prompt": ["import os\n", PROMPT], "seed": 3},
        {"logprobs": 2, "logit_bias": {"37": -100}},
    ]

    async def ask(client: openai.AsyncOpenAI) -> Any:
        calls = [client.completions.create(**{**ASKED, "prompt": PROMPT, **fields}) for fields in kinds]
        return await asyncio.gather(*calls)

    for said, fields in zip(asked(shared, ask), kinds, strict=True):
        alone = completion(app, **fields)
        assert [choice.text for choice in said.choices] == [choice.text for choice in alone.choices]
        if said.choices[0].logprobs is not None:
            assert said.choices[0].logprobs.token_logprobs == near(alone.choices[0].logprobs.token_logprobs)
        assert said.usage.completion_tokens_details.passes > 0
