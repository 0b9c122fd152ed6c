"""Saved and loaded again, in this process and in a new one; weights that do not fit; offloading."""

import json
import os
import shutil
import subprocess
import sys

import accelerate
import pytest
import torch
from accelerate.hooks import ModelHook, add_hook_to_module, remove_hook_from_module
from diffusers import DiffusionPipeline
from diffusers.models import modeling_utils
from diffusers.pipelines import pipeline_utils
from safetensors.torch import load_file, save_file

import mmspec
from mmspec import shipped
from mmspec.api import pipeline, plan, stored
from mmspec.api.saved import FILE
from mmspec.core.goodput import Goodput
from mmspec.core.rules import Match
from mmspec.hosts import linear
from mmspec.hosts.loading import load_model, locate
from mmspec.kits.pictures.models.vq import LlamaGenVQ
from mmspec_image.pipeline import TextToImagePipeline

PROMPTS = ["red heart", "blue cat face"]
WEIGHTS = "diffusion_pytorch_model.safetensors"


def quiet(pipe):
    pipe.set_progress_bar_config(disable=True)
    return pipe


SCRIPT = """
import sys, mmspec
pipe = mmspec.Pipeline.from_pretrained(sys.argv[1], method="plain")
print(pipe(["red heart", "blue cat face"], seed=11).codes.flatten().tolist())
"""


@pytest.mark.slow  # in this process it does, too; tests/recorded compares pictures with those of another process
def test_a_new_process_draws_the_same_picture(tiny, saved):
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    run = subprocess.run([sys.executable, "-c", SCRIPT, str(saved)], capture_output=True, text=True, env=env)
    assert run.returncode == 0, run.stderr
    assert json.loads(run.stdout) == tiny(PROMPTS, seed=11).codes.flatten().tolist()


@pytest.mark.parametrize("kind", [mmspec.Pipeline, TextToImagePipeline])
def test_a_folder_loads_as_it_was_saved(tiny, saved, kind):
    pipe = quiet(kind.from_pretrained(saved, method="gs-sjd", k=3, init="left"))
    assert type(pipe) is TextToImagePipeline and pipe.decoder().k == 3
    assert pipe.dtype == torch.float32 and not any(m.training for m in (pipe.transformer, pipe.vq, pipe.text_encoder))
    assert torch.equal(pipe(PROMPTS, seed=2).codes, tiny(PROMPTS, seed=2).codes)
    assert locate(str(saved)) == str(saved)


def test_other_numbers_and_parts_of_the_users_own(tiny, saved, tmp_path):
    half = quiet(TextToImagePipeline.from_pretrained(saved, dtype=torch.bfloat16))
    assert half.dtype == half.transformer.dtype == torch.bfloat16
    assert half("red heart", seed=1).images[0].size == (8, 8)
    half.save_pretrained(tmp_path)
    back = TextToImagePipeline.from_pretrained(tmp_path, vq=tiny.vq, text_encoder=None, tokenizer=None)
    assert back.dtype == torch.float32 and back.vq is tiny.vq and back.text_encoder is None
    with pytest.raises(ValueError, match="has no text encoder: load it with text_encoder="):
        back("red heart")
    wrong = LlamaGenVQ(30, ch=32, encoder_ch_mult=(1, 1), decoder_ch_mult=(1, 1), z_channels=32, num_res_blocks=1)
    with pytest.raises(ValueError, match="vq= is to be a live LlamaGenVQ, not 'nowhere': load it before"):
        mmspec.Pipeline.from_pretrained(saved, vq="nowhere")
    with pytest.raises(ValueError, match="the transformer draws 24, the VQ has 30"):
        TextToImagePipeline.from_pretrained(saved, vq=wrong)


def test_without_a_text_encoder(tiny_classes, tmp_path):
    tiny_classes.save_pretrained(tmp_path)
    pipe = quiet(mmspec.Pipeline.from_pretrained(tmp_path))
    assert pipe.text_encoder is None and pipe.decoder().name == "gs-sjd"
    assert torch.equal(pipe(class_labels=3, seed=1).codes, tiny_classes(class_labels=3, seed=1).codes)


def test_a_shipped_name_and_its_card(saved, tiny, tmp_path, monkeypatch):
    shutil.copytree(saved, tmp_path / "assets" / "emoji", ignore=shutil.ignore_patterns(FILE))
    (tmp_path / "model_cards").mkdir()
    monkeypatch.setattr(shipped, "folder", lambda name: tmp_path / name)
    monkeypatch.setattr(plan, "card_of", lambda name: {})
    pipe = quiet(mmspec.Pipeline.from_pretrained("mmspec/emoji"))
    assert pipe.decoder().why == "gs-sjd, which the target llamagen is used with"
    assert torch.equal(pipe(PROMPTS, seed=2).codes, tiny(PROMPTS, seed=2).codes)
    said = {"default_method": "mc-sjd", "k": 5, "default_policy": "goodput"}
    monkeypatch.setattr(plan, "card_of", lambda name: said if name == "emoji" else {})
    decoder = pipe.use().decoder()
    assert (decoder.name, decoder.k) == ("mc-sjd", 5) and isinstance(decoder.policy, Goodput)
    assert decoder.why == "mc-sjd, because the card of mmspec/emoji names it"
    with pytest.raises(ValueError, match="no shipped model is called 'emojis'; did you mean 'emoji'"):
        mmspec.Pipeline.from_pretrained("mmspec/emojis")
    with pytest.raises(ValueError, match=r"is a whole pipeline, not a model: load it with mmspec\.Pipeline"):
        load_model("mmspec/emoji")


@pytest.mark.parametrize("numbers", ["bfloat16", torch.bfloat16, "bf16"])
@pytest.mark.parametrize("called", ["dtype", "torch_dtype"])
def test_kinds_of_numbers_by_either_name(saved, numbers, called):
    if numbers == "bf16":
        with pytest.raises(ValueError, match="no dtype of weights is called 'bf16'; did you mean 'bfloat16'"):
            mmspec.Pipeline.from_pretrained(saved, **{called: numbers})
        return
    pipe = mmspec.Pipeline.from_pretrained(saved, **{called: numbers})
    assert pipe.dtype == pipe.transformer.dtype == pipe.vq.dtype == torch.bfloat16
    with pytest.raises(ValueError, match="are one setting"):
        mmspec.Pipeline.from_pretrained(saved, **{called: numbers, "dtype": "float16", "torch_dtype": numbers})


def test_how_it_speculates_is_saved_and_restored(tiny, tmp_path):
    pipe = quiet(TextToImagePipeline(**tiny.components)).use("mc-sjd", k=4, init="left")
    pipe.save_pretrained(tmp_path)
    assert json.loads((tmp_path / FILE).read_text()) == {"method": "mc-sjd", "k": 4, "options": {"init": "left"}}
    for load in (mmspec.Pipeline.from_pretrained, DiffusionPipeline.from_pretrained):
        decoder = load(tmp_path).decoder()
        assert (decoder.name, decoder.k, decoder.drafter.options.init) == ("mc-sjd", 4, "left")
    assert mmspec.Pipeline.from_pretrained(tmp_path, k=2).decoder().k == 2
    assert mmspec.Pipeline.from_pretrained(tmp_path, method="plain").decoder().name == "plain"
    pipe.use().save_pretrained(tmp_path)
    assert not (tmp_path / FILE).exists(), "what was never said is left to later defaults"


FORGED = {
    "no table": ([1], "it holds a list, not an object"),
    "no json": ("{", "does not say how to speculate"),
    "setting": ({"metod": "plain"}, "did you mean 'method'"),
    "method": ({"method": "os.system"}, "is no method that is installed"),
    "method of another kind": ({"method": {"a": 1}}, "is no method that is installed"),
    "k": ({"k": 10**9}, "k is 1000000000"),
    "k of another kind": ({"k": True}, "k is True"),
    "drafter": ({"method": "draft-model", "drafter": "/etc/passwd"}, "neither a component nor a shipped model"),
    "hub": ({"method": "draft-model", "drafter": "someone/model"}, "neither a component nor a shipped model"),
    "climbing": ({"method": "draft-model", "drafter": "mmspec/../../x"}, "neither a component nor a shipped model"),
    "file": ({"method": "suffix", "options": {"corpus": "secrets"}}, "the option 'corpus' is no number"),
    "model": ({"options": {"drafter.model": "x"}}, "the option 'drafter.model' is no number"),
    "path": ({"options": {"init": "../left"}}, "the option 'init' is no number"),
    "nested": ({"options": {"rule": {"x": 1}}}, "the option 'rule' is no number"),
    "benchmarks": ({"rule": "synthetic"}, "the rule synthetic is for benchmarks only"),
    "escape": ({"policy": "\x1b[2J"}, "has no name"),
}


@pytest.mark.parametrize("case", FORGED)
def test_a_forged_file_is_refused(saved, tmp_path, case):
    shutil.copytree(saved, tmp_path / "forged")
    said, message = FORGED[case]
    (tmp_path / "forged" / FILE).write_text(said if isinstance(said, str) else json.dumps(said))
    with pytest.raises(ValueError, match=message):
        mmspec.Pipeline.from_pretrained(tmp_path / "forged")


def test_a_live_drafter_is_not_saved_and_that_is_said(tiny, tmp_path):
    class Silent:
        def propose(self, tokens, k):
            return [[] for _ in tokens]

    pipe = quiet(TextToImagePipeline(**tiny.components)).use("plain").use(drafter=Silent())
    with pytest.warns(UserWarning, match="does not keep how this pipeline speculates") as seen:
        pipe.save_pretrained(tmp_path)
    assert seen[0].filename == __file__ and not (tmp_path / FILE).exists()


def test_nothing_is_said_of_accelerate(saved, monkeypatch, caplog):
    """Which we do not need: the weights are there already."""
    for module in (pipeline_utils, modeling_utils):
        monkeypatch.setattr(module, "is_accelerate_available", lambda: False)
        monkeypatch.setattr(module.logger, "propagate", True)
    mmspec.Pipeline.from_pretrained(saved)
    assert "accelerate" not in caplog.text


def without(name):
    return lambda state: {key: value for key, value in state.items() if key != name}


def shorter(*names):
    return lambda state: {key: value[:-1].clone() if key in names else value for key, value in state.items()}


MISFITS = {
    "missing": ("transformer", without("norm.weight"), r"do not fit their LlamaGenTransformer: 1 keys missing .norm"),
    "unexpected": ("vq", lambda state: {**state, "odd": torch.zeros(1)}, "1 keys unexpected .odd"),
    "another size": (
        "transformer",
        shorter("output.weight", "tok_embeddings.weight"),
        r"2 keys of another shape .output.weight: \[23, 32\], not \[24, 32\], tok_embeddings.weight: \[23, 32\]",
    ),
}


@pytest.mark.parametrize("case", MISFITS)
def test_weights_that_do_not_fit(saved, tmp_path, case):
    part, change, says = MISFITS[case]
    folder = shutil.copytree(saved, tmp_path / "pipe")
    save_file(change(load_file(folder / part / WEIGHTS)), folder / part / WEIGHTS)
    with pytest.raises(ValueError, match=says):
        mmspec.Pipeline.from_pretrained(folder)


def rewrite(name, old, new):
    def change(folder):
        text = (folder / name).read_text()
        assert old in text
        (folder / name).write_text(text.replace(old, new))

    return change


def pickled(folder):
    (folder / "vq" / WEIGHTS).unlink()
    torch.save({}, folder / "vq" / "diffusion_pytorch_model.bin")


DAMAGE = {
    "truncated": (
        lambda f: (f / "vq" / WEIGHTS).write_bytes((f / "vq" / WEIGHTS).read_bytes()[:-9]),
        "vq. are damaged or truncated",
    ),
    "no weights": (
        lambda f: (f / "vq" / WEIGHTS).unlink(),
        "the LlamaGenVQ in .*vq cannot be loaded: there is no model.safetensors",
    ),
    "pickled": (pickled, "vq has its weights as a pickle .diffusion_pytorch_model.bin., which can run code"),
    "no part": (lambda f: shutil.rmtree(f / "vq"), "there is no folder vq, its LlamaGenVQ"),
    "no tokenizer": (lambda f: shutil.rmtree(f / "tokenizer"), "there is no folder tokenizer"),
    "no configuration": (lambda f: (f / "vq" / "config.json").write_text("{"), "vq/config.json cannot be read"),
    "another configuration": (rewrite("transformer/config.json", '"n_layer": 2', '"n_layer": 3'), "7 keys missing"),
    "another VQ": (
        rewrite("vq/config.json", '"codebook_size": 24', '"codebook_size": 30'),
        r"\[24, 8\], not \[30, 8\]",
    ),
    "no index": (lambda f: (f / "model_index.json").write_text("{"), "model_index.json cannot be read"),
    "a list": (lambda f: (f / "model_index.json").write_text("[]"), "it holds a list, not an object"),
    "no such part": (
        rewrite("model_index.json", "LlamaGenVQ", "Nonsense"),
        "vq is to be a LlamaGenVQ, not .mmspec.kits.pictures.models.vq.Nonsense.",
    ),
    "another library": (
        rewrite("model_index.json", "mmspec.kits.pictures.models.vq", "os"),
        "vq is to be a LlamaGenVQ, not .os.LlamaGenVQ.",
    ),
    "another pipeline": (rewrite("model_index.json", "TextToImagePipeline", "Odd"), "a Odd, which no installed plugin"),
}


@pytest.mark.parametrize("case", DAMAGE)
def test_a_damaged_folder(saved, tmp_path, case):
    change, says = DAMAGE[case]
    folder = shutil.copytree(saved, tmp_path / "pipe")
    change(folder)
    with pytest.raises(ValueError, match=says):
        mmspec.Pipeline.from_pretrained(folder)


def test_of_a_name_of_the_hub_the_index_is_checked_first_and_no_code_is_fetched(saved, tmp_path, monkeypatch):
    folder, asked = shutil.copytree(saved, tmp_path / "pipe"), []
    monkeypatch.setattr(stored, "hf_hub_download", lambda name, file: str(folder / file))
    monkeypatch.setattr(stored, "snapshot_download", lambda name, **how: asked.append((name, how)) or str(folder))
    assert type(TextToImagePipeline.from_pretrained("somebody/emoji").vq) is LlamaGenVQ
    (name, how), *others = asked
    assert name == "somebody/emoji" and not others
    assert not {".py", ".bin", ".pt"} & {os.path.splitext(pattern)[1] for pattern in how["allow_patterns"]}
    rewrite("model_index.json", "mmspec.kits.pictures.models.vq", "os")(folder)
    with pytest.raises(ValueError, match=r"vq is to be a LlamaGenVQ, not .os\.LlamaGenVQ"):
        TextToImagePipeline.from_pretrained("somebody/emoji")
    assert len(asked) == 1


class Asleep(ModelHook):
    """As accelerate's offloading: weights are of no use before `forward`; what runs without it is found out."""

    def init_hook(self, module):
        self.kept = {name: weight.data.clone() for name, weight in module.named_parameters()}
        for weight in module.parameters():
            weight.data.fill_(torch.nan)
        return module

    def pre_forward(self, module, *args, **kwargs):
        for name, weight in module.named_parameters():
            weight.data.copy_(self.kept[name])
        return args, kwargs


@pytest.mark.parametrize("method", ["plain", "gs-sjd", "gsd", "lantern"])
def test_offloaded_whole_models_wake_up(saved, method):
    pipe = quiet(mmspec.Pipeline.from_pretrained(saved, method=method))
    expected = pipe(PROMPTS, seed=2, negative_prompt="apple", output_type="pt")
    for part in (pipe.text_encoder, pipe.transformer, pipe.vq):
        add_hook_to_module(part, Asleep())
    previews = []

    def preview(pipe, step, timestep, tensors):
        """Decoding sends the transformer to sleep, as offloading in a chain does."""
        if step == 2:
            previews.append(pipe.decode_units(tensors["tokens"].clamp(min=0)))
            pipe.transformer._hf_hook.init_hook(pipe.transformer)

    made = pipe.use(method)(PROMPTS, seed=2, negative_prompt="apple", output_type="pt", callback_on_step_end=preview)
    assert torch.equal(made.codes, expected.codes) and torch.equal(made.images, expected.images)
    assert previews[0].isfinite().all()


def test_offloading_of_diffusers_and_accelerate(saved, monkeypatch):
    monkeypatch.setattr(linear, "SMALLEST", 0)  # so that narrow passes multiply in their own way here too
    monkeypatch.setenv("MMSPEC_PRODUCTS", "packed")
    monkeypatch.setattr(linear, "PATIENCE", 0)
    load = lambda: quiet(mmspec.Pipeline.from_pretrained(saved, k=6))  # noqa: E731
    expected = load()(PROMPTS, seed=2, negative_prompt="apple", output_type="pt")
    whole, layers, groups = load(), load(), load()
    whole.enable_model_cpu_offload(device="cpu")
    layers("red heart", k=0, seed=2)  # what the target remembers of its layers must not outlive this
    parts = layers.text_encoder, layers.transformer, layers.vq
    for part in parts:  # what enable_sequential_cpu_offload does, on a device that accelerate's own checks let pass
        accelerate.cpu_offload(part, torch.device("cpu"), offload_buffers=len(part._parameters) > 0)
    groups.enable_group_offload(torch.device("cpu"), offload_type="block_level", num_blocks_per_group=1)
    for pipe in (whole, layers, groups):
        for _ in range(2):
            made = pipe(PROMPTS, seed=2, negative_prompt="apple", output_type="pt")
            assert torch.equal(made.codes, expected.codes) and torch.equal(made.images, expected.images)
        pipe("red heart", k=0, seed=2)
    assert layers.vq.quantize.embedding.weight.is_meta and layers.transformer.output.weight.is_meta
    for part in parts:
        remove_hook_from_module(part, recurse=True)


def test_moving_binds_drafter_and_rule_anew(saved, monkeypatch):
    class Remembers(Match):
        def bind(self, target):
            self.codebook = target.codebook

    rule = Remembers()
    pipe = quiet(TextToImagePipeline.from_pretrained(saved, method="gs-sjd", rule=rule))
    first = pipe.decoder()
    assert pipe.decoder() is first and not rule.codebook.is_meta
    monkeypatch.setattr(pipeline, "refuse_device", lambda place: None)
    pipe.to("meta")
    assert pipe.decoder().rule is rule and pipe.decoder().k == first.k and rule.codebook.is_meta
