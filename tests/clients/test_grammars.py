"""Matchers of xgrammar and llguidance under `mmspec.Grammar`: their texts, with drafts."""

import json
from collections.abc import Callable
from typing import Any

import pytest

import mmspec

SCHEMA = {
    "type": "object",
    "properties": {
        "temperature_in_degrees_celsius": {"type": "integer"},
        "relative_humidity_in_percent": {"type": "integer"},
        "name_of_the_weather_station": {"type": "string", "maxLength": 12},
        "is_the_measurement_calibrated": {"type": "boolean"},
    },
    "required": [
        "temperature_in_degrees_celsius",
        "relative_humidity_in_percent",
        "name_of_the_weather_station",
        "is_the_measurement_calibrated",
    ],
    "additionalProperties": False,
}


def compiled(model: Any, tokenizer: Any) -> Any:
    xgrammar = pytest.importorskip("xgrammar")
    info = xgrammar.TokenizerInfo.from_huggingface(tokenizer, vocab_size=model.config.vocab_size)
    return xgrammar.GrammarCompiler(info).compile_json_schema(json.dumps(SCHEMA), any_whitespace=False)


def xgrammar_of(model: Any, tokenizer: Any) -> Callable[[], Any]:
    grammar, xgrammar = compiled(model, tokenizer), pytest.importorskip("xgrammar")
    return lambda: xgrammar.GrammarMatcher(grammar)


def llguidance_of(model: Any, tokenizer: Any) -> Callable[[], Any]:
    llguidance = pytest.importorskip("llguidance")
    from_tokenizer = pytest.importorskip("llguidance.hf").from_tokenizer
    table = from_tokenizer(tokenizer, n_vocab=model.config.vocab_size)
    grammar = llguidance.LLMatcher.grammar_from_json_schema(SCHEMA, defaults={"whitespace_flexible": False})
    return lambda: llguidance.LLMatcher(table, grammar)


MAKERS = {"xgrammar": xgrammar_of, "llguidance": llguidance_of}


@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize("library", MAKERS)
def test_json_with_drafts(model: Any, tokenizer: Any, both: Callable, library: str, rows: int) -> None:
    make = MAKERS[library](model, tokenizer)
    asked = ["the measurement as JSON: ", "JSON: "][:rows]
    inputs = tokenizer(asked, return_tensors="pt", padding=True, padding_side="left")

    def ask() -> list[list[int]]:
        grammar = mmspec.Grammar(make, tokenizer)
        call = dict(max_new_tokens=120, do_sample=True, logits_processor=[grammar], pad_token_id=tokenizer.eos_token_id)
        return model.generate(**inputs, **call).tolist()

    report = both(model, ask)
    assert report.drafted > 0


@pytest.mark.parametrize("library", MAKERS)
def test_what_the_schema_decides_costs_no_pass(model: Any, tokenizer: Any, library: str) -> None:
    make = MAKERS[library](model, tokenizer)
    with mmspec.enable(model, "grammar", k=12) as spec:
        ids = written(model, tokenizer, mmspec.Grammar(make, tokenizer))
    said = json.loads(tokenizer.decode(ids, skip_special_tokens=True))
    assert list(said) == SCHEMA["required"]
    assert spec.report is not None and spec.report.emitted > 1.5 * spec.report.rounds


def test_the_text_of_the_librarys_own_processor(model: Any, tokenizer: Any) -> None:
    own = pytest.importorskip("xgrammar.contrib.hf").LogitsProcessor(compiled(model, tokenizer))
    make = xgrammar_of(model, tokenizer)
    assert written(model, tokenizer, own) == written(model, tokenizer, mmspec.Grammar(make, tokenizer))


def written(model: Any, tokenizer: Any, processor: Any) -> list[int]:
    inputs = tokenizer(["the measurement as JSON: "], return_tensors="pt")
    call = dict(max_new_tokens=160, do_sample=False, pad_token_id=tokenizer.eos_token_id)
    ids: list[int] = model.generate(**inputs, **call, logits_processor=[processor])[0].tolist()
    return ids[inputs["input_ids"].shape[1] :]
