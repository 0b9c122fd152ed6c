"""`mmspec tune`: losers leave, the fastest stays, and `auto` takes what was found, for these weights alone."""

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

import mmspec
from mmspec.api.build import decoder_for
from mmspec.api.plan import choose
from mmspec.api.tuned import BESIDE, Tuned, key_of, tuned_for, write
from mmspec.cli.app import build
from mmspec.hosts.loading import load_model
from mmspec.kits.text import knockout, tuning
from mmspec.registry import DefaultMethod, TargetSpec
from mmspec.report.result import PLAIN
from tests.text.test_pipeline import folder  # noqa: F401


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MMSPEC_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_auto_takes_what_was_found(make_llama: Callable, cache: Path) -> None:
    model = make_llama()
    assert tuned_for(model) is None
    file = write(Tuned(key_of(model), "token-recycling", k=3, options={"nodes": 5}, speedup=1.25))
    assert file.parent == cache / "tuned"
    decoder = decoder_for(model)
    assert (decoder.name, decoder.k, decoder.drafter.options.nodes) == ("token-recycling", 3, 5)
    assert "mmspec tune found to be the fastest here (1.25 × plain decoding)" in decoder.why
    assert decoder_for(model, k=2).k == 2 and decoder_for(model, options={"nodes": 4}).drafter.options.nodes == 4
    assert decoder_for(model, "suffix").name == "suffix"
    assert decoder_for(make_llama(seed=1)).name == "suffix", "other weights"
    assert decoder_for(make_llama().to(torch.bfloat16)).name == "suffix", "another dtype"
    write(Tuned(key_of(model), PLAIN, speedup=1.0))
    assert decoder_for(model).k == 0


def test_heads_that_ship_for_a_model_race(cache: Path) -> None:
    model = load_model("mmspec/text-14m")
    racers, chosen = tuning.contestants(model, compiled=True)
    name = "eagle, chains of 2, text-14m-eagle3"
    assert {name, f"{name}, compiled"} <= set(racers) and chosen[name]["drafter"] == "mmspec/text-14m-eagle3"
    write(Tuned(key_of(model), "eagle", "mmspec/text-14m-eagle3", 2, options={"width": 1, "nodes": 2}))
    decoder = decoder_for(model)
    assert (decoder.name, decoder.k, decoder.drafter.options.nodes) == ("eagle", 2, 2)
    assert decoder.why.startswith("eagle with mmspec/text-14m-eagle3, which mmspec tune found")
    assert not tuning.heads_for(load_model("mmspec/text-1m"))


def test_what_was_found_on_texts_is_not_meant_for_pictures(make_llama: Callable) -> None:
    """As of Emu3, whose target names a method for its pipeline."""
    model, pictures = make_llama(), DefaultMethod(method="gs-sjd", when="pipeline")
    write(Tuned(key_of(model), "suffix"))
    facts: dict[str, Any] = dict(name="both", factory="x:Y", summary="Texts and pictures.")
    for methods, pipeline, method in (
        ((pictures,), True, "gs-sjd"),
        ((pictures,), False, "suffix"),
        ((), True, "suffix"),
    ):
        target = TargetSpec(**facts, default_methods=methods)
        assert choose(model, target, False, False, pipeline).method == method


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"method": "bild"}, "is lossy"),
        ({"method": "rsd"}, "is lossless"),
        ({"method": "../x"}, "method and policy are names"),
        ({"method": "nothing-like-it"}, "nothing-like-it"),
        ({"policy": "fast"}, "no policy"),
        ({"k": True}, "k is a number from 1 to 512"),
        ({"k": 10**9}, "k is a number from 1 to 512"),
        ({"options": {"nodes": "9"}}, "options are numbers"),
        ({"options": {"nodes": 10**6}}, "nodes"),
        ({"options": {"model": 3}}, "model"),
        ({"options": []}, "options are numbers"),
        ({"compile": "yes"}, "compile is true or false"),
        ({"drafter": "/somebody's/model"}, "drafter is the name of a shipped head"),
        ({"drafter": "mmspec/../x"}, "no shipped model"),
        ({"drafter": "mmspec/text-1m"}, "model"),
        ({"method": PLAIN, "drafter": "mmspec/text-14m-eagle3"}, "'plain' has no options"),
        ("[]", "list"),
    ],
)
def test_a_strangers_file_has_no_effect(make_llama: Callable, changed: Any, says: str) -> None:
    model = make_llama()
    good = asdict(Tuned(key_of(model), "token-recycling", k=3))
    file = write(Tuned(key_of(model), PLAIN))
    file.write_text(changed if isinstance(changed, str) else json.dumps({**good, **changed}))
    with pytest.warns(UserWarning, match=f"is no file of mmspec tune, and has no effect: .*{says}"):
        assert decoder_for(model).name == "suffix"


def run(*arguments: str) -> Any:
    return CliRunner().invoke(build(), ["tune", *arguments], env={"COLUMNS": "160"})


def test_the_command(folder: Path, tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    few = {name: tuning.CANDIDATES[name] for name in (PLAIN, "suffix, k=5", "token-recycling, 8 nodes")}
    monkeypatch.setattr(tuning, "CANDIDATES", few)
    monkeypatch.setattr(tuning, "PEERS", {"generate": {}})
    monkeypatch.setattr(knockout, "JUDGED", 1)
    monkeypatch.setattr(knockout, "MOST", 1)
    (tmp_path / "prompts.jsonl").write_text('{"prompt": "a dog and"}\n{"turns": ["cats", "more"]}\n')
    monkeypatch.setattr(tuning, "verdict", lambda race, chosen: (kept, "It was measured."))
    how = ("--prompts", str(tmp_path / "prompts.jsonl"), "--new-tokens", "16", "--beside")
    kept = None
    result = run(str(folder), *how)
    assert result.exit_code == 0, result.output
    assert "generate" in result.stdout and "token-recycling, 8 nodes" in result.stdout
    assert "It was measured." in result.stdout and "ways, 2 prompts, outputs of 16 tokens" in result.stderr
    assert not (folder / BESIDE).exists() and not cache.exists(), "what is not known is not kept"
    kept = PLAIN
    assert f"The file {folder / BESIDE} says so" in run(str(folder), *how, "--minutes", "0").stdout.replace("\n", "")
    decoder = decoder_for(mmspec.Pipeline.from_pretrained(folder).model)
    assert decoder.k == 0 and "mmspec tune" in decoder.why


@pytest.mark.parametrize(
    ("content", "says"),
    [("", "is empty"), ("not JSON", "cannot be read"), ('{"prompt": ""}', "no prompt"), (None, "there is no file")],
)
def test_prompts_that_are_none(folder: Path, tmp_path: Path, content: str | None, says: str) -> None:  # noqa: F811
    file = tmp_path / "prompts.jsonl"
    if content is not None:
        file.write_text(content)
    assert says in str(run(str(folder), "--prompts", str(file)).exception)


def test_prompts_beyond_the_context(folder: Path, tmp_path: Path) -> None:  # noqa: F811
    (tmp_path / "prompts.jsonl").write_text(json.dumps({"prompt": "a dog and " * 2000}))
    found = run(str(folder), "--prompts", str(tmp_path / "prompts.jsonl"))
    assert "prompt 0 has " in str(found.exception) and "has no room for 96 more" in str(found.exception)
