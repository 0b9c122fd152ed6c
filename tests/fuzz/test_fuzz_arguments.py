"""Arguments of `enable`, `generate` and pipelines that are out of range or of another kind."""

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

import mmspec
from mmspec.core.out_of_memory import out_of_memory
from mmspec.shipped import asset

PROMPT = torch.tensor([[5, 17, 99, 5, 17, 99, 5]])
NUMBERS: tuple[Any, ...] = (
    None,
    True,
    -1,
    0,
    1.5,
    10**6,
    10**30,
    float("nan"),
    float("inf"),
    "",
    "3",
    [],
    {},
    object(),
)


@pytest.fixture(scope="module")
def model() -> Any:
    return AutoModelForCausalLM.from_pretrained(asset("text-1m"), dtype=torch.float32).eval()


@pytest.fixture(scope="module")
def text() -> Any:
    return mmspec.Pipeline.from_pretrained("mmspec/text-1m", method="prompt-lookup")


@pytest.fixture(scope="module")
def emoji() -> Any:
    return mmspec.Pipeline.from_pretrained("mmspec/emoji", method="plain")


@pytest.fixture(scope="module")
def soft() -> Any:
    return mmspec.Pipeline.from_pretrained("mmspec/emoji-continuous", method="plain")


@pytest.fixture(scope="module")
def world() -> Any:
    return mmspec.Pipeline.from_pretrained("mmspec/four-courts", method="plain")


@pytest.fixture(autouse=True)
def left_as_found(model: Any) -> Any:
    torch.manual_seed(0)
    yield
    mmspec.disable(model)


ENABLE = {
    "method": (
        None,
        7,
        "",
        "x",
        "prompt_lookup",
        "gs-sjd",
        "reflection",
        "nfd",
        "text:x",
        "x:y:z",
        ["plain"],
        "a" * 900,
    ),
    "drafter": (7, "", "x", object(), [], "no/such", torch.nn.Linear(2, 2)),
    "rule": (7, "", "x", object(), [], "grouped", "relaxed"),
    "k": NUMBERS,
    "policy": (7, "", "x", object(), [], True),
    "seed": (True, -1, 1.5, 10**30, "", "3", [], {}),
    "noise": (7, "", "x", object(), True),
    "num_speculative_tokens": NUMBERS,
    "metod": ("plain",),
    "window": (8,),
    "assistant_model": (None, 7),
    "ngram": NUMBERS,
}


@pytest.mark.parametrize("name,value", [(n, v) for n, values in ENABLE.items() for v in values])
def test_enable(attempt: Callable, model: Any, name: str, value: Any) -> None:
    """What is accepted writes what plain transformers writes."""
    call = dict(max_new_tokens=8, do_sample=False, pad_token_id=1)
    right = model.generate(PROMPT, **call)

    def run() -> Any:
        with mmspec.enable(model, **{"method": "prompt-lookup", name: value}):
            return model.generate(PROMPT, **call)

    attempt(run, lambda made: torch.equal(made, right))


@pytest.mark.parametrize("thing", [None, 7, "text-1m", torch.nn.Linear, torch.nn.Linear(2, 2), object(), [], {}])
def test_enable_what_is_no_model(attempt: Callable, thing: Any) -> None:
    attempt(lambda: mmspec.enable(thing, "plain"))
    mmspec.disable(thing)


GENERATE = {
    "max_new_tokens": (-1, 0, 1.5, "3", 10**9),
    "temperature": (-1.0, 0.0, "1", float("nan")),
    "top_k": (-1, 0, 1.5, "3", 10**9),
    "top_p": (-0.1, 1.1, "x"),
    "min_p": (-0.1, 1.1),
    "repetition_penalty": (-1.0, 0.0, "x"),
    "no_repeat_ngram_size": (-1, 10**9),
    "num_beams": (0, 2, "x"),
    "num_return_sequences": (0, 2, -1),
    "eos_token_id": (-1, 10**9, "x", []),
    "pad_token_id": (-1, 10**9),
    "bad_words_ids": ([], [[]], [[10**9]], "x"),
    "stop_strings": (7, "", ["a"]),
    "streamer": (7, object()),
    "stopping_criteria": (7, [7]),
    "logits_processor": (7, [7]),
    "attention_mask": (torch.ones(1, 3), torch.zeros(1, 7), "x", torch.ones(2, 7)),
    "past_key_values": (7, "x", ()),
    "use_cache": (False, None, "x"),
    "cache_implementation": ("static", "x", 7),
    "assistant_model": (7, "x"),
    "prompt_lookup_num_tokens": (3, -1, "x"),
    "max_length": (-1, 3),
    "penalty_alpha": (0.6,),
    "custom_generate": (7, "x/y", mmspec.custom_generate),
    "typo": (1,),
}


@pytest.mark.parametrize("name,value", [(n, v) for n, values in GENERATE.items() for v in values])
def test_generate(record_property: Callable, model: Any, name: str, value: Any) -> None:
    """Where transformers refuses, so does an enabled model; where both answer, the answer is the same.

    `use_cache=None` is the exception: transformers 5 then fills a cache and yet passes the whole sequence at every
    step, so that its tokens are not those of `use_cache=True` or `False`. An enabled model writes these.
    """
    call = {"max_new_tokens": 8, "do_sample": True, "pad_token_id": 1, name: value}
    if name == "max_new_tokens" and value == 10**9:
        call["eos_token_id"] = list(range(4096))

    def run(**others: Any) -> Any:
        torch.manual_seed(0)
        try:
            return model.generate(PROMPT, **{**call, **others})
        except Exception as error:
            return error

    right = run(use_cache=True) if (name, value) == ("use_cache", None) else run()
    with mmspec.enable(model, "prompt-lookup", k=3):
        made = run()
    record_property("outcome", "refused" if isinstance(made, Exception) else "accepted")
    if isinstance(made, Exception):
        theirs = (isinstance(right, Exception) and type(made) is type(right)) or out_of_memory(made)
        assert theirs or isinstance(made, ValueError | TypeError), repr(made)
    else:
        assert not isinstance(right, Exception), f"transformers refuses this: {right!r:.200}"
        assert torch.equal(made, right)


IDS = {
    "empty": torch.zeros(1, 0, dtype=torch.int64),
    "one dimension": torch.tensor([1, 2]),
    "three dimensions": torch.zeros(1, 2, 3, dtype=torch.int64),
    "float": torch.ones(1, 4),
    "bool": torch.ones(1, 4, dtype=torch.bool),
    "negative": torch.tensor([[-1, 2]]),
    "too large": torch.tensor([[4096]]),
    "far too large": torch.tensor([[2**62]]),
    "longer than the context": torch.ones(1, 5000, dtype=torch.int64),
    "no rows": torch.zeros(0, 4, dtype=torch.int64),
    "a list": [[1, 2]],
    "text": "hello",
    "none": None,
}


@pytest.mark.parametrize("name", IDS)
def test_ids(attempt: Callable, model: Any, name: str) -> None:
    """Some never come as far as here: then the error is that of transformers."""

    def run() -> Any:
        try:
            return model.generate(IDS[name], max_new_tokens=4, do_sample=False, pad_token_id=1)
        except Exception as error:
            return error

    def ours() -> Any:
        theirs = run()
        with mmspec.enable(model, "prompt-lookup"):
            made = run()
        if isinstance(made, Exception):
            raise ValueError("as without mmspec") if type(made) is type(theirs) else made
        return made

    attempt(ours, lambda made: name == "none" and made.shape[1] <= 6)


PIPELINES: dict[str, dict[str, tuple[Any, ...]]] = {
    "text": {
        "prompt": (3, None, b"x", [], [3], [None], {}, ["a", 3]),
        "max_new_tokens": (None, True, -1, 0, 1.5, "3", float("nan")),
        "temperature": (None, -1, "1", float("nan"), []),
        "top_k": (None, -1, 1.5, "3"),
        "top_p": (None, -0.1, 1.1, "x", float("nan")),
        "min_p": (-0.1, 1.1, "x"),
        "seed": (1.5, "3", [1, 2], {}),
        "generator": (7, "x", [torch.Generator(), torch.Generator()]),
        "k": (-1, 1.5, "3", True),
    },
    "emoji": {
        "prompt": (3, None, b"x", [], [3], {}, "xylophone quantum", "", ["red", 3]),
        "guidance_scale": ("3", [], float("nan"), float("inf")),
        "temperature": ("1", -1.0, float("nan"), []),
        "top_k": (-1, 1.5, "3"),
        "top_p": (-0.1, 1.1, "x"),
        "num_images_per_prompt": (-1, 0, 1.5, "3"),
        "generator": (7, "x"),
        "output_type": ("x", 7, []),
        "k": (-1, 1.5, "3"),
    },
    "soft": {
        "prompt": (3, None, b"x", [], [3], {}, "xylophone quantum"),
        "guidance_scale": ("3", [], float("nan")),
        "generator": (7, "x"),
        "output_type": ("x", 7),
        "k": (-1, 1.5, "3"),
    },
    "world": {
        "frames": (3, None, "x", [], torch.zeros(1), torch.full((1, 48, 64, 3), float("nan"))),
        "actions": (3, "x", [3], ["fly"], {}, [None]),
        "seed": (1.5, "3", {}),
    },
}
GOOD: dict[str, dict[str, Any]] = {
    "text": {"prompt": "def f(", "max_new_tokens": 4},
    "emoji": {"prompt": "red heart"},
    "soft": {"prompt": "red heart"},
    "world": {"frames": torch.zeros(1, 48, 64, 3, dtype=torch.uint8).numpy(), "actions": ["forward"]},
}
CALLS = [(p, n, v) for p, settings in PIPELINES.items() for n, values in settings.items() for v in values]


@pytest.mark.parametrize("pipe,name,value", CALLS)
def test_pipelines(request: pytest.FixtureRequest, attempt: Callable, pipe: str, name: str, value: Any) -> None:
    attempt(lambda: request.getfixturevalue(pipe)(**{**GOOD[pipe], name: value}))


LOADING = {
    "dtype": ("float33", "int8", 7, torch.int64, "", []),
    "torch_dtype": ("float33", 7),
    "device": ("tpu", "cuda:99", 7, ""),
    "method": ("", "x", 7, "nfd"),
    "k": (-1, 1.5, "3", True),
    "drafter": (7, "x", "no/such"),
    "typo": (1,),
}
NAMES = ("mmspec/text-1m", "mmspec/emoji")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("key,value", [(k, v) for k, values in LOADING.items() for v in values])
def test_loading(attempt: Callable, name: str, key: str, value: Any) -> None:
    attempt(lambda: mmspec.Pipeline.from_pretrained(name, **{key: value}))


PLACES = ("", "x", "no/such", "mmspec/none", "..", "/", "a\x1b[31m/b", "x" * 500, "a/b/c", "~", 7, None, b"x")


@pytest.mark.parametrize("place", PLACES)
def test_a_place_that_is_none(attempt: Callable, place: Any) -> None:
    attempt(lambda: mmspec.Pipeline.from_pretrained(place))


@pytest.mark.parametrize("limit,k", itertools.product((1, 2, 17), (0, 1, 40, 10**6)))
@pytest.mark.parametrize("method", ["prompt-lookup", "suffix", "token-recycling", "draft-model", "draft-tree", "rsd"])
def test_limits(attempt: Callable, model: Any, method: str, limit: int, k: int) -> None:
    """A budget beyond all limits is a budget up to the limit."""
    call = dict(max_new_tokens=limit, do_sample=False, pad_token_id=1)
    right = model.generate(PROMPT, **call)
    how = {"drafter": model} if method in ("draft-model", "draft-tree", "rsd") else {}

    def run() -> Any:
        with mmspec.enable(model, method, k=k, **how):
            return model.generate(PROMPT, **call)

    attempt(run, lambda made: torch.equal(made, right))
