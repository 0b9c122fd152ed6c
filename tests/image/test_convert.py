"""`mmspec convert llamagen`: the folder draws what the published files draw, and wrong files are refused by name."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from diffusers import DiffusionPipeline
from PIL import Image
from safetensors.torch import save_file
from transformers import T5Config, T5EncoderModel, T5ForConditionalGeneration
from typer.testing import CliRunner

import mmspec
from mmspec.cli.app import build
from mmspec.kits.pictures.arguments import Sampling
from mmspec.kits.pictures.layouts import layouts
from mmspec.kits.pictures.models.official import read_header
from mmspec.kits.pictures.models.vq import LlamaGenVQ
from mmspec.registry.options import explain
from mmspec.testing.parity import read
from mmspec_image.models.llamagen import LlamaGenTransformer
from mmspec_image.pipeline import TextToImagePipeline
from tests.support.published_vq import published

FIXTURES = Path(__file__).parent / "parity"
KNOWN = {"grid": 4, "n_head": 4}


@pytest.fixture(scope="module")
def files(small_vq, tmp_path_factory):
    """The published files of a model of classes: a pickle in a wrapper, and safetensors."""
    folder = tmp_path_factory.mktemp("published")
    torch.save({"model": read(FIXTURES / "llamagen_c2i.safetensors")[0], "steps": 7}, folder / "c2i.pt")
    vq = published(small_vq.state_dict()) | {"quantize.codebook_used": torch.zeros(8)}
    save_file({key: value.contiguous() for key, value in vq.items()}, folder / "vq.safetensors")
    return folder / "c2i.pt", folder / "vq.safetensors"


@pytest.fixture(scope="module")
def folder(files, tmp_path_factory):
    made = tmp_path_factory.mktemp("made") / "llamagen"
    layouts()["llamagen"].convert(files[::-1], made, KNOWN)
    return made


def drawn(pipe):
    pipe.set_progress_bar_config(disable=True)
    return pipe(class_labels=[0, 2], seed=3, guidance_scale=2.0, output_type="pt")


def test_a_converted_folder_draws_what_the_published_files_draw(files, folder):
    transformer, vq = LlamaGenTransformer.from_official(files[0], **KNOWN), LlamaGenVQ.from_official(files[1])
    wanted = drawn(TextToImagePipeline(transformer, vq).use("plain"))
    loaded = mmspec.Pipeline.from_pretrained(folder, method="gs-sjd", k=4)
    for pipe in (loaded, DiffusionPipeline.from_pretrained(folder)):
        made = drawn(pipe)
        assert torch.equal(made.codes, wanted.codes) and torch.equal(made.images, wanted.images)
    assert wanted.codes.unique().numel() > 2


def test_a_converted_folder_draws_as_its_authors_do_unless_a_call_says_otherwise(folder, by_caption, small_vq):
    pipe = mmspec.Pipeline.from_pretrained(folder, method="gs-sjd", k=4)
    pipe.set_progress_bar_config(disable=True)
    assert pipe.sampling == Sampling(4.0, top_k=2000)
    assert layouts()["llamagen"].pipeline(by_caption, small_vq).sampling == Sampling(7.5, top_k=1000)
    call = dict(class_labels=[0, 2], seed=3, output_type="latent")
    assert torch.equal(pipe(**call).images, pipe(**call, guidance_scale=4.0, top_k=2000).images)
    assert not torch.equal(pipe(**call).images, pipe(**call, guidance_scale=1.0).images)


def test_a_converted_model_draws_the_codes_that_the_official_implementation_drew(folder):
    io = read(FIXTURES / "llamagen_c2i.safetensors")[1]
    pipe = mmspec.Pipeline.from_pretrained(folder, method="gs-sjd", k=4)
    pipe.set_progress_bar_config(disable=True)
    made = pipe(class_labels=io["cond"], temperature=0, guidance_scale=3.0, output_type="latent")
    assert torch.equal(made.codes.flatten(1).int(), io["greedy_cfg3"].int())


def test_the_card_says_whose_files_they_are(folder):
    card = (folder / "README.md").read_text()
    assert "layout: llamagen" in card and "target: llamagen" in card and "FoundationVision/LlamaGen" in card
    assert "`c2i.pt`" in card and "`vq.safetensors`" in card
    assert f"Licence: {layouts()['llamagen'].licence}." in card and "ask the publisher" in card
    assert not list(folder.rglob("*.bin")) and not list(folder.rglob("*.pt"))


def test_a_header_is_read_without_weights(files):
    for file in files:
        contents = read_header(file)
        state = contents.get("model", contents)
        assert state and all(value.is_meta for value in state.values())


def test_sizes_of_a_tokenizer_are_read_from_its_weights(small_vq):
    assert LlamaGenVQ.from_official(published(small_vq.state_dict())).config.items() >= {
        "ch": 32, "codebook_size": 24, "encoder_ch_mult": (1, 1), "num_res_blocks": 1,
    }.items()  # fmt: skip


def test_a_model_of_captions_takes_features_or_a_text_encoder_that_is_given(tiny, files, tmp_path):
    torch.save(dict(tiny.transformer.state_dict()), tmp_path / "t2i.pt")
    layouts()["llamagen"].convert([tmp_path / "t2i.pt", files[1]], tmp_path / "out", KNOWN)
    how = {"seed": 1, "guidance_scale": 2.0, "output_type": "latent"}
    parts = {"text_encoder": tiny.text_encoder, "tokenizer": tiny.tokenizer}
    pipe = mmspec.Pipeline.from_pretrained(tmp_path / "out", method="plain", **parts)
    pipe.set_progress_bar_config(disable=True)
    assert torch.equal(pipe("red heart", **how).codes, tiny("red heart", **how).codes)
    bare = mmspec.Pipeline.from_pretrained(tmp_path / "out", method="plain")
    bare.set_progress_bar_config(disable=True)
    with pytest.raises(ValueError, match="no text encoder: load it with text_encoder="):
        bare("red heart", **how)
    assert bare(prompt_embeds=torch.ones(1, 6, 12), **how).codes.shape == (1, 4, 4)


def test_a_model_of_captions_takes_the_name_of_a_text_encoder(tiny, files, tmp_path):
    torch.save(dict(tiny.transformer.state_dict()), tmp_path / "t2i.pt")
    layouts()["llamagen"].convert([tmp_path / "t2i.pt", files[1]], tmp_path / "out", KNOWN)
    config = T5Config(vocab_size=9, d_model=12, d_kv=4, d_ff=16, num_layers=1, num_heads=2, tie_word_embeddings=False)
    published = T5ForConditionalGeneration(config)  # with a decoder and a head, as flan-t5-xl
    published.save_pretrained(tmp_path / "t5")
    tiny.tokenizer.save_pretrained(tmp_path / "t5")
    said = ["red heart", "--model", str(tmp_path / "out"), "--opt", f"text_encoder={tmp_path / 't5'}", "--seed", "3"]
    drawn = CliRunner().invoke(build(), ["generate", "image", *said, "-o", str(tmp_path / "out.png")])
    assert drawn.exit_code == 0, drawn.output
    encoder = T5EncoderModel(config).eval()
    encoder.load_state_dict(published.state_dict(), strict=False)
    pipe = mmspec.Pipeline.from_pretrained(tmp_path / "out", text_encoder=encoder, tokenizer=tiny.tokenizer)
    wanted = pipe("red heart", seed=3, guidance_scale=7.5, top_k=1000).images[0]
    assert np.array_equal(np.asarray(Image.open(tmp_path / "out.png")), np.asarray(wanted))


def refused(files, folder, known=KNOWN):
    with pytest.raises(ValueError) as error:
        layouts()["llamagen"].convert(files, folder, known)
    assert not folder.exists() or not any(folder.iterdir())
    return str(error.value)


def test_what_does_not_fit_is_refused_by_name(files, tmp_path):
    out = tmp_path / "out"
    transformer, vq = files
    assert "lacks the vq (such as vq_ds16_c2i.pt)" in refused([transformer], out)
    assert f"{transformer} and {transformer} are both the transformer" in refused([transformer, transformer], out)
    assert "option 'grid' is required" in refused(files, out, {})
    assert "did you mean 'grid'?" in refused(files, out, {"gird": 4})
    assert "width 32 with 2 blocks is no published size: say n_head=" in refused(files, out, {"grid": 4})
    torch.save({"strange": torch.zeros(2)}, tmp_path / "strange.pt")
    said = refused([tmp_path / "strange.pt", vq], out)
    assert "is no file of 'llamagen'" in said and "of no known layout (" in said and "strange" in said
    save_file({"x_embedder.proj.weight": torch.zeros(2)}, tmp_path / "part.safetensors")
    assert "nearest is the transformer of 'oasis'" in refused([tmp_path / "part.safetensors", vq], out)


def test_parts_of_other_sizes_are_refused_before_weights_are_read(files, tmp_path, monkeypatch):
    vq = LlamaGenVQ(16, ch=32, encoder_ch_mult=(1, 1), decoder_ch_mult=(1, 1), z_channels=32, num_res_blocks=1)
    save_file({k: v.contiguous() for k, v in published(vq.state_dict()).items()}, tmp_path / "vq.safetensors")
    monkeypatch.setattr("mmspec.kits.pictures.models.official.load_file", None)
    said = refused([files[0], tmp_path / "vq.safetensors"], tmp_path / "out")
    assert "24" in said and "16" in said


def test_a_folder_that_holds_files_is_left_alone(files, tmp_path):
    (tmp_path / "kept.txt").write_text("mine")
    with pytest.raises(ValueError, match="holds files already"):
        layouts()["llamagen"].convert(files, tmp_path, KNOWN)
    assert [file.name for file in tmp_path.iterdir()] == ["kept.txt"]


def test_the_command_lists_layouts_and_converts(files, tmp_path):
    run = CliRunner().invoke
    listed = run(build(), ["convert"])
    assert listed.exit_code == 0 and "llamagen" in listed.output and "oasis" in listed.output
    said = " ".join(listed.output.replace("│", " ").split())
    assert "licence" in said and "publisher" in said
    with pytest.raises(ValueError, match="llamagen"):
        run(build(), ["convert", "lamagen", "x.pt", "-o", str(tmp_path / "out")], catch_exceptions=False)
    names = [*map(str, files), "-o", str(tmp_path / "out")]
    made = run(build(), ["convert", "llamagen", *names, "--opt", "grid=4", "--opt", "n_head=4"])
    assert made.exit_code == 0 and (tmp_path / "out" / "model_index.json").is_file()


def test_every_layout_has_a_page_whose_command_its_files_answer():
    pages = Path(__file__).parents[2] / "docs" / "models"
    for layout in layouts().values():
        page = (pages / f"{layout.name}.md").read_text()
        assert f"mmspec convert {layout.name} " in page and f"({layout.name}.md)" in (pages / "README.md").read_text()
        required = [o.name for o in explain(layout.options) if not o.default]
        assert all(f"--opt {name}=" in page for name in required)


def test_files_that_are_damaged_or_hold_code_are_refused_by_name(files, tmp_path):
    class Trap:
        def __reduce__(self):
            return (Path.mkdir, (tmp_path / "sprung",))

    whole = files[0].read_bytes()
    torch.save({"model": Trap()}, tmp_path / "trap.pt")
    (tmp_path / "half.pt").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "empty.safetensors").write_bytes(b"")
    for name, why in (("trap.pt", "can run code"), ("half.pt", "damaged"), ("empty.safetensors", "damaged")):
        said = refused([tmp_path / name, files[1]], tmp_path / "out")
        assert said.startswith(str(tmp_path / name)) and why in said
    assert "there is no file" in refused([tmp_path / "nowhere.pt"], tmp_path / "out")
    assert not (tmp_path / "sprung").exists()


SCRIPT = """
import sys, json, mmspec
pipe = mmspec.Pipeline.from_pretrained(sys.argv[1], method="gs-sjd", k=4)
pipe.set_progress_bar_config(disable=True)
print(json.dumps(pipe(class_labels=[0, 2], seed=3, guidance_scale=2.0, output_type="latent").codes.tolist()))
"""


@pytest.mark.slow
def test_another_process_draws_the_same(files, folder):
    wanted = drawn(mmspec.Pipeline.from_pretrained(folder, method="plain")).codes
    done = subprocess.run([sys.executable, "-c", SCRIPT, str(folder)], capture_output=True, text=True, check=True)
    assert torch.equal(torch.tensor(json.loads(done.stdout.splitlines()[-1])), wanted)
