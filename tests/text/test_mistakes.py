"""Users' mistakes: messages say what to write instead; warnings point at the user's line; the `repr` of handles."""

import inspect
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, models
from transformers import (
    BloomConfig,
    BloomForCausalLM,
    LlamaForCausalLM,
    LogitsProcessor,
    PreTrainedTokenizerFast,
    T5Config,
    T5ForConditionalGeneration,
    TextGenerationPipeline,
)

import mmspec
from mmspec.registry.warn import warn

ARGUMENTS = {
    "metod": "did you mean 'method'",
    "assistant_model": "did you mean 'drafter'",
    "draft_model": "did you mean 'drafter'",
    "window": "did you mean 'k'",
    "num_assistant_tokens": "did you mean 'k'",
    "polcy": "did you mean 'policy'",
    "nois": "did you mean 'noise'",
    "max_mach": "did you mean 'max_match'",
}


@pytest.mark.parametrize("name", ARGUMENTS)
def test_a_misspelt_argument_is_found_among_arguments_and_options(target: Any, name: str) -> None:
    with pytest.raises(ValueError, match=ARGUMENTS[name]):
        mmspec.enable(target, "suffix", **{name: 3})
    assert "generate" not in target.__dict__


def test_num_speculative_tokens_is_k(target: Any) -> None:
    with mmspec.enable(target, "suffix", num_speculative_tokens=7) as spec:
        assert "k=7" in repr(spec)


@pytest.mark.parametrize(
    ("name", "argument", "says"),
    [
        ("mmspec/text-1m", "max_new_token", "TextPipeline: no argument is called .* did you mean 'max_new_tokens'"),
        ("mmspec/text-1m", "max_length", "did you mean 'max_new_tokens'"),
        ("mmspec/text-1m", "method", r"There is: .*; methods and their options are chosen with pipe\.use"),
        ("mmspec/emoji", "num_inference_steps", "'num_inference_steps'. There is: .*guidance_scale.*, width"),
        ("mmspec/emoji-continuous", "guidance", "did you mean 'guidance_scale'"),
        ("mmspec/four-courts", "num_frame", "did you mean 'num_frames'"),
    ],
)
def test_a_misspelt_argument_of_a_call_is_found(name: str, argument: str, says: str) -> None:
    pipe = mmspec.Pipeline.from_pretrained(name, method="plain")
    with pytest.raises(TypeError, match=says):
        pipe("x", **{argument: 3})
    assert argument not in inspect.signature(type(pipe).__call__).parameters


def tokenizer() -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel({"a": 0}, unk_token="a")))


STRANGERS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "nothing": (lambda model: None, r"not None: load one, as with transformers' AutoModelForCausalLM"),
    "name": (lambda model: "mmspec/text-1m", r"the name 'mmspec/text-1m': .*mmspec\.Pipeline\.from_pretrained"),
    "path": (lambda model: Path("a/b"), r"the name 'a/b': load it first"),
    "class": (lambda model: LlamaForCausalLM, r"the class LlamaForCausalLM: .*LlamaForCausalLM\.from_pretrained"),
    "tokenizer": (lambda model: tokenizer(), r"a TokenizersBackend: pass the model"),
    "ours": (
        lambda model: mmspec.Pipeline.from_pretrained("mmspec/text-1m"),
        r"a TextPipeline of mmspec, .*pipe\.use\(method\)",
    ),
    "copies": (lambda model: torch.nn.DataParallel(model), r"a DataParallel, .* pass the model inside, model\.module"),
    "processes": (
        lambda model: torch.nn.parallel.DistributedDataParallel.__new__(torch.nn.parallel.DistributedDataParallel),
        r"a DistributedDataParallel, .* pass the model inside, model\.module",
    ),
    "theirs": (
        lambda model: TextGenerationPipeline(model, tokenizer=tokenizer()),
        r"of transformers: pass its model, mmspec\.enable\(pipe\.model",
    ),
}


@pytest.mark.parametrize("case", STRANGERS)
def test_what_is_no_live_model_is_refused_with_what_to_call(target: Any, case: str) -> None:
    given, says = STRANGERS[case]
    with pytest.raises(TypeError, match=says):
        mmspec.enable(given(target))


METHODS = {"gs-sjd": "llamagen", "sjd": "llamagen", "frame-gs-sjd": "token-frames", "reflection": "continuous-ar"}


@pytest.mark.parametrize("method", METHODS)
def test_a_method_of_another_modality_says_what_it_is_for(target: Any, method: str) -> None:
    with pytest.raises(ValueError) as refused:
        mmspec.enable(target, method)
    message = str(refused.value)
    assert f"{method!r} is for" in message and METHODS[method] in message.partition(" is for ")[2]
    fitting = message.partition("Methods that fit: ")[2].partition(". ")[0].split(", ")
    assert {"suffix", "draft-model"} <= set(fitting) and not set(METHODS) & set(fitting)


def test_custom_generate_that_was_not_called(target: Any, prompts: Callable) -> None:
    with pytest.raises(TypeError, match=r"write custom_generate=mmspec\.custom_generate\(\)"):
        target.generate(**prompts(1), max_new_tokens=3, custom_generate=mmspec.custom_generate)
    with pytest.raises(TypeError, match="write custom_generate="):
        mmspec.custom_generate(target)  # type: ignore[arg-type]


def test_a_handle_shows_what_it_is(target: Any) -> None:
    handle = mmspec.enable(target, "suffix", k=7)
    assert repr(handle) == "<mmspec suffix on LlamaForCausalLM, k=7>"
    handle.disable()
    assert repr(handle) == "<mmspec suffix on LlamaForCausalLM, k=7, disabled>"
    with mmspec.enable(target) as handle:
        assert repr(handle).endswith(f"k=10 ({handle.why})>")


def test_a_package_shows_its_own_names_only() -> None:
    assert set(dir(mmspec)) == {"__version__", *mmspec._HOMES}
    script = "import mmspec, mmspec.shipped; mmspec.hookimpl; print(*dir(mmspec))"  # `enable` is used in this process
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert run.stdout.split() == dir(mmspec)


class Stateful(LogitsProcessor):
    """A processor that may keep state between calls."""

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        return scores


class Failing:
    """A drafter with a fault."""

    def propose(self, tokens: list[list[int]], k: int) -> list[list[int]]:
        raise ValueError("a fault")


def test_warnings_stand_at_the_users_line(target: Any, prompts: Callable) -> None:
    for spec, call in (
        ({"method": "suffix"}, {"logits_processor": [Stateful()]}),
        ({"drafter": Failing()}, {}),
    ):
        with warnings.catch_warnings(record=True) as seen, mmspec.enable(target, **spec):
            warnings.simplefilter("always")
            target.generate(**prompts(1), max_new_tokens=4, **call)
        ours = [w for w in seen if "without drafts" in str(w.message) or "without a draft" in str(w.message)]
        assert len(ours) == 1 and ours[0].filename == __file__


def test_a_warning_skips_libraries_between(tmp_path: Path) -> None:
    """At any depth of frames of mmspec and of libraries; without a user's frame, the warning is still shown."""
    deep: dict[str, Any] = {"__name__": "mmspec_plugin.deep", "warn": warn}
    exec("def deep():\n    warn('careful')", deep)
    between: dict[str, Any] = {"__name__": "transformers.generation", "deep": deep["deep"]}
    exec("def run():\n    deep()", between)
    with pytest.warns(UserWarning, match="careful") as seen:
        between["run"]()
    assert seen[0].filename == __file__


def test_a_drafter_that_is_no_model_is_refused_as_the_drafter(target: Any) -> None:
    with pytest.raises(TypeError, match=r"drafter= takes a live model, not a DataParallel, .* model\.module"):
        mmspec.enable(target, drafter=torch.nn.DataParallel(target))


@pytest.mark.parametrize("kind", ["encoder–decoder", "no attention of ours"])
def test_of_two_models_the_one_that_is_refused_is_named(target: Any, kind: str) -> None:
    if kind == "encoder–decoder":
        sizes = {"vocab_size": 60, "d_model": 16, "d_kv": 8, "d_ff": 16, "num_layers": 1, "num_heads": 2}
        drafter = T5ForConditionalGeneration(T5Config(**sizes)).eval()
    else:
        drafter = BloomForCausalLM(BloomConfig(vocab_size=60, hidden_size=32, n_layer=1, n_head=2)).eval()
    with pytest.raises(ValueError, match="the draft model is refused, and not the target: "):
        mmspec.enable(target, drafter=drafter)
    with pytest.raises(ValueError, match=r"only decoders|cannot verify drafts") as error:
        mmspec.enable(drafter)
    assert "draft model" not in str(error.value)


def compiled_forward(model: Any) -> None:
    model.forward = torch.compile(model.forward, backend="eager", fullgraph=True)


def compiled_part(model: Any) -> None:
    model.model = torch.compile(model.model, backend="eager", fullgraph=True)


WHOLE_GRAPHS: dict[str, tuple[Callable[[Any], None], str]] = {
    "in place": (lambda model: model.compile(backend="eager", fullgraph=True), "while it is compiled"),
    "its forward": (compiled_forward, "while it is compiled"),
    "a part": (compiled_part, "while its model is compiled"),
    "a layer": (lambda model: model.model.layers[0].compile(backend="eager", fullgraph=True), "its model.layers.0 is"),
}


@pytest.mark.parametrize("how", WHOLE_GRAPHS)
def test_one_graph_that_must_not_break_is_refused_with_what_to_pass(make_llama: Callable, how: str) -> None:
    model = make_llama()
    change, said = WHOLE_GRAPHS[how]
    change(model)
    with pytest.raises(ValueError, match=rf"{said} .*fullgraph=True.*pass the uncompiled module"):
        mmspec.enable(model, "prompt-lookup")


def test_a_wrapper_of_a_compiled_model_is_refused_with_what_to_pass(target: Any) -> None:
    with pytest.raises(ValueError, match=r"a torch\.compile wrapper, .* pass the model itself"):
        mmspec.enable(torch.compile(target, backend="eager"))
