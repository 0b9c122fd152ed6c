"""`mmspec methods --for MODEL`: what fits, why the rest does not, what was measured; from the config alone."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import BloomConfig, LlamaConfig, RwkvConfig, T5Config
from typer.testing import CliRunner

from mmspec import shipped
from mmspec.cli import fitting
from mmspec.cli.app import build
from mmspec.hosts.outline import SMALL, outline
from mmspec.registry import DrafterSpec, MethodSpec, Registry, Spec, hookimpl, installed
from mmspec.report.result import Result, Row
from mmspec.shipped import BENCHES

PICKY = """
class Picky:
    offers, needs = frozenset({"chain"}), frozenset({"discrete"})

    def bind(self, target):
        raise ValueError(f"picky wants 7 words, not {target.vocab}")
"""


class Words:
    """Methods that ask for more than a transformers model has."""

    @hookimpl
    def mmspec_components(self) -> list[Spec]:
        return [
            drafter("peeking", needs={"window"}),
            drafter("picky", needs={"discrete"}),
            method("peeking"),
            method("picky"),
            method("lost", drafter="gone"),
            DrafterSpec(name="torn", factory="not_there:X", options="not_there:Y", summary="D."),
            method("torn"),
        ]


def drafter(name: str, needs: set[str]) -> DrafterSpec:
    return DrafterSpec(name=name, factory="picky_module:Picky", needs=needs, offers={"chain"}, summary="D.")


def method(name: str, drafter: str | None = None) -> MethodSpec:
    return MethodSpec(name=name, drafter=drafter or name, exactness="invariant", summary="M.")


@pytest.fixture
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    (tmp_path / "picky_module.py").write_text(PICKY)
    monkeypatch.syspath_prepend(tmp_path)
    installed().register(Words(), "words")
    yield installed()
    installed().unregister("words")


def by_name(found: fitting.Fits) -> dict[str, fitting.Fit]:
    return {fit.method: fit for fit in found.methods}


def test_what_fits_and_what_it_takes(registry: Registry) -> None:
    found = fitting.fits_of(registry, "mmspec/text-1m")
    methods = by_name(found)
    assert (found.target, found.refused, found.checked, found.parameters) == ("text:transformers", "", True, 918_144)
    ours = {component.name for component in registry.components("method") if component.owner in ("text", "zoo")}
    assert {name for name, fit in methods.items() if fit.fits} == ours - {
        *("mtp", "swift"),  # its checkpoint has no such layers, and only two that swift would have to keep
        *("rest", "ambedkar"),  # they want texts
        *("judge", "specmemo", "assd"),  # they want a judge, a budget, and a model that fills blanks
        "ppd-model",  # it wants prompt tokens of the draft model
    } | {"stree"}
    assert methods["prompt-lookup"].options == ["max_ngram", "min_ngram"] and not methods["prompt-lookup"].required
    assert methods["draft-model"].required == ["model"] and "tokenizer" in methods["draft-model"].options
    assert methods["rsd"].exactness == "lossless" and methods["plain"].options == []
    assert methods["eagle"].required == ["model"], "no model stands in for a head: it fits by its words"


def test_what_to_try_first(registry: Registry) -> None:
    """Exact methods, the fastest that were measured first; then heads, that which ships first; then draft models."""
    found = fitting.fits_of(registry, "mmspec/text-14m")
    listed = fitting.first(found, [method.name for method in registry.components("method")])
    ways = [way for way in fitting.WAYS for _ in range(fitting.FIRST)]
    assert all(fit.needs.startswith(way) for fit, way in zip(listed, ways, strict=True))
    assert (listed[3].method, listed[3].needs) == ("eagle", "a trained head: drafter=mmspec/text-14m-eagle3")
    assert {fit.method for fit in listed[:3]} == {"prompt-lookup", "suffix", "token-recycling"}
    assert all(fit.exactness == "invariant" for fit in listed) and "draft-model" in {fit.method for fit in listed[6:]}
    shown = CliRunner().invoke(build(), ["methods", "--for", "mmspec/text-14m"], env={"COLUMNS": "160"}).output
    assert "auto takes suffix, because the card" in shown and "more methods fit: mmspec methods --for" in shown
    assert "clover-2" not in shown and "does not fit" not in shown


def test_why_the_rest_does_not(registry: Registry) -> None:
    methods = by_name(fitting.fits_of(registry, "mmspec/text-1m"))
    assert methods["peeking"].why == "drafter 'peeking' needs window, which the target does not offer"
    assert methods["picky"].why == "picky wants 7 words, not 4096"
    assert "no drafter is called 'gone'" in methods["lost"].why
    assert "'not_there:Y', which cannot be imported" in methods["torn"].why
    assert not any(methods[name].fits for name in ("peeking", "picky", "lost", "torn"))


CONFIGS = {
    "alibi": (BloomConfig(vocab_size=131, hidden_size=32, n_layer=2, n_head=4), True, "ALiBi"),
    "alibi, large": (BloomConfig(hidden_size=1024, n_layer=24, n_head=16), False, "ALiBi"),
    "recurrent": (RwkvConfig(vocab_size=131, hidden_size=32, num_hidden_layers=2), True, "'rwkv' is recurrent"),
    "recurrent, large": (RwkvConfig(hidden_size=2048, num_hidden_layers=48), False, "'rwkv' is recurrent"),
    "seq2seq": (
        T5Config(vocab_size=131, d_model=16, d_ff=16, num_layers=1, architectures=["T5ForConditionalGeneration"]),
        True,
        "encoder–decoder",
    ),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_a_model_that_the_target_refuses_is_refused_with_its_reason(tmp_path: Path, name: str) -> None:
    config, built, says = CONFIGS[name]
    config.save_pretrained(tmp_path)
    found = fitting.fits_of(installed(), str(tmp_path))
    assert found.checked is built and says in found.refused
    assert not any(fit.fits for fit in found.methods)
    others = {"assd"}  # it is for another target
    assert all(says in fit.why for fit in found.methods if fit.owner in ("text", "zoo") and fit.method not in others)


def test_a_large_model_takes_no_memory_and_says_that_it_was_not_tried(tmp_path: Path) -> None:
    LlamaConfig().save_pretrained(tmp_path)
    seen = outline(str(tmp_path))
    assert seen.parameters > 100 * SMALL and {weights.device.type for weights in seen.model.parameters()} == {"meta"}
    run = CliRunner().invoke(build(), ["methods", "--for", str(tmp_path)], env={"COLUMNS": "160"})
    assert run.exit_code == 0 and "self-check of the first use has the last word" in run.output
    assert "prompt-lookup" in run.output and "not measured" in run.output


def test_what_cannot_be_made_of_its_defaults_does_not_fit_a_large_model_either(tmp_path: Path) -> None:
    """It has the reason that it has for a small model, which is tried; layers of a checkpoint cannot be seen here."""
    LlamaConfig().save_pretrained(tmp_path)
    large = by_name(fitting.fits_of(installed(), str(tmp_path)))
    small = by_name(fitting.fits_of(installed(), "mmspec/text-1m"))
    assert not large["rest"].fits and large["rest"].why == small["rest"].why != ""
    assert large["mtp"].fits and "it fits if it has any" in large["mtp"].why
    assert all(large[name].fits and not large[name].why for name in ("suffix", "draft-model", "token-recycling"))


def test_only_the_config_is_read_and_no_chance_is_used_up(tmp_path: Path) -> None:
    shutil.copy(shipped.asset("text-1m") / "config.json", tmp_path)
    state = torch.get_rng_state()
    found = fitting.fits_of(installed(), str(tmp_path))
    assert torch.equal(torch.get_rng_state(), state)
    assert found.parameters == 918_144 and by_name(found)["plain"].fits and not found.measured


PIPELINES = {
    "mmspec/emoji": ("image:llamagen", "gs-sjd", "denoise-ahead"),
    "mmspec/emoji-continuous": ("continuous:continuous-ar", "reflection", "gs-sjd"),
}


@pytest.mark.parametrize("name", PIPELINES)
def test_of_a_pipeline_its_target_is_meant(name: str) -> None:
    target, fitting_method, other = PIPELINES[name]
    found = fitting.fits_of(installed(), name)
    methods = by_name(found)
    assert (found.target, found.refused, found.checked) == (target, "", True) and found.measured
    assert methods[fitting_method].fits and methods[fitting_method].expected
    assert not methods[other].fits and "which the target does not offer" in methods[other].why
    assert methods["auto"].why.startswith(f"{fitting_method}, ")


def test_a_pipeline_of_an_unknown_class_is_refused(tmp_path: Path) -> None:
    shutil.copytree(shipped.asset("emoji"), tmp_path, dirs_exist_ok=True)
    index = tmp_path / "model_index.json"
    index.write_text(index.read_text().replace("LlamaGenTransformer", "Elsewhere"))
    with pytest.raises(ValueError, match=r"transformer is to be a LlamaGenTransformer, not .*\.Elsewhere"):
        fitting.fits_of(installed(), str(tmp_path))


def row(method: str, mode: str, batch: int, speedup: float) -> Row:
    counts = dict(units=9, target_passes=3, acceptance_length=3.25, acceptance_by_depth=[0.5])
    times = dict(repeats_s=[1.0], plain_repeats_s=[speedup], draft_s=0.0, verify_s=1.0, rest_s=0.0)
    return Row(method, "invariant", "code, greedy", mode=mode, batch=batch, **counts, **times)


def test_what_to_expect_is_what_was_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [row("suffix", "real", 1, 2.5), row("suffix", "oracle", 1, 9.0), row("suffix", "real", 8, 8.0)]
    result = Result("text", "mmspec/text-1m", "a small machine", {}, 0, {}, rows, {})
    result.save(tmp_path / f"text-1m{BENCHES[0]}")
    replace(result, rows=[row("suffix", "real", 1, 7.0), row("token-recycling", "real", 1, 1.5)]).save(
        tmp_path / f"text-1m{BENCHES[1]}"
    )
    folder = shipped.folder
    monkeypatch.setattr(shipped, "folder", lambda name: tmp_path if name == "model_cards" else folder(name))
    run = CliRunner().invoke(build(), ["methods", "--for", str(shipped.asset("text-1m")), "--json"])
    found = json.loads(run.output)
    methods = {fit["method"]: fit for fit in found["methods"]}
    expected = {"setting": "code, greedy", "acceptance_length": 3.25, "speedup": 2.5}
    assert methods["suffix"]["expected"] == [expected] and methods["plain"]["expected"] == []
    assert methods["token-recycling"]["expected"] == [expected | {"speedup": 1.5}], "of the second benchmark"
    assert found["measured"] == "a small machine"
    run = CliRunner().invoke(build(), ["methods", "--for", "mmspec/text-1m"], env={"COLUMNS": "160"})
    assert "code, greedy: 3.25 units a pass, 2.50 ×" in run.output and "Measured on a small machine" in run.output


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--for", "mmspec/text-14"], "did you mean 'text-14m'"),
        (["--for", "not/there"], "no config of a model at 'not/there'.*Shipped: .*mmspec/text-14m"),
        (["plain", "--for", "mmspec/text-1m"], "not both"),
    ],
)
def test_mistakes_are_named(arguments: list[str], says: str) -> None:
    run = CliRunner().invoke(build(), ["methods", *arguments])
    assert isinstance(run.exception, ValueError)
    with pytest.raises(ValueError, match=says):
        raise run.exception


def test_trained_heads_fit_if_one_is_given() -> None:
    """No model stands in for a head; a checkpoint's own layers are looked for, and here there are none."""
    fits = {fit.method: fit for fit in fitting.fits_of(installed(), "mmspec/text-1m").methods}
    assert fits["eagle"].fits and fits["eagle"].required == ["model"]
    assert not fits["mtp"].fits and "multi-token layers" in fits["mtp"].why and not fits["mtp"].required
