"""`mmspec convert` of files in the authors' layouts: what is drawn from the folder is what the authors' classes drew.

`tools/fixtures/official.py` ran those classes. Weights are by a formula, in the files here as there.
"""

import argparse
import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import safetensors.torch
import torch
from diffusers import VQModel
from safetensors import safe_open
from typer.testing import CliRunner

import mmspec
from mmspec.cli.app import build
from mmspec.core.decoder import Decoder
from mmspec.core.torch_noise import TorchSource
from mmspec.core.warp import Warp
from mmspec.kits.pictures.arguments import Sampling
from mmspec.kits.pictures.conditions import Condition
from mmspec.kits.pictures.layouts import layouts
from mmspec.kits.pictures.models.vq import LlamaGenVQ
from mmspec.testing import parity
from mmspec_image.constraint import chameleon_grid, emu3_grid
from mmspec_image.drafters.jacobi import ImageJacobi
from mmspec_image.language_pipeline import Ids
from mmspec_image.models.grid_language import GRIDS
from mmspec_image.models.llamagen import LlamaGenTransformer
from mmspec_image.official.published import UNTAKEN
from mmspec_image.targets.llamagen import LlamaGenTarget
from tests.support import official_files as files
from tests.support import published_vq
from tests.support.close import assert_near
from tests.support.examples.written import tiny_chameleon, tiny_emu3
from tests.support.zoo import build as build_model

FIXTURES = Path(__file__).parent / "official"


def read(name):
    with safe_open(FIXTURES / f"{name}.safetensors", "pt") as file:
        return {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("official")


@pytest.fixture(scope="module")
def chameleon_vq(place):
    return files.write_vqgan(place / "tokenizer")


@pytest.fixture(scope="module")
def lumina(place, chameleon_vq):
    layouts()["lumina"].convert([chameleon_vq, files.write_lumina(place / "Lumina")], place / "lumina", {"size": 64})
    return place / "lumina"


@pytest.fixture(scope="module")
def anole(place, chameleon_vq):
    layouts()["anole"].convert([files.write_anole(place / "7b"), chameleon_vq], place / "anole", {})
    return place / "anole"


@pytest.fixture(scope="module")
def janus(place):
    layouts()["janus"].convert([files.write_janus(place / "Janus", shapes("janus"))], place / "janus", {})
    return place / "janus"


@pytest.fixture(scope="module")
def emu3_vq(place):
    of = {key.removeprefix("vq."): shape for key, shape in shapes("emu3").items() if key.startswith("vq.")}
    return files.write_emu3_vq(place / "Emu3-VisionTokenizer", of)


@pytest.fixture(scope="module")
def emu3(place, emu3_vq):
    of = {key: shape for key, shape in shapes("emu3").items() if not key.startswith("vq.")}
    layouts()["emu3"].convert([files.write_emu3(place / "Emu3-Gen", of), emu3_vq], place / "emu3", {})
    return place / "emu3"


@pytest.fixture(scope="module")
def liquid(place, chameleon_vq):
    return converted(place, "liquid", [files.write_liquid(place / "Liquid", shapes("liquid")), chameleon_vq])


@pytest.fixture(scope="module")
def simplear(place):
    return converted(place, "simplear", [files.write_simplear(place / "SimpleAR", shapes("simplear"))])


@pytest.fixture(scope="module")
def ibq(place):
    return files.write_vq(place / "Emu3.5-VisionTokenizer" / "model.ckpt", shapes("ibq"))


@pytest.fixture(scope="module")
def movqgan(place):
    return files.write_vq(place / "movqgan_270M.ckpt", shapes("movqgan"))


@pytest.fixture(scope="module")
def emu35(place, ibq):
    return converted(place, "emu3.5", [files.write_emu3(place / "Emu3.5", shapes("emu3.5"), files.EMU35), ibq])


@pytest.fixture(scope="module")
def lumina2(place, movqgan):
    return converted(place, "lumina2", [files.write_lumina2(place / "Lumina-2"), movqgan])


def converted(place, name, given):
    layouts()[name].convert(given, place / name, ASKED.get(name, {}))
    return place / name


def shapes(name):
    """The shapes of the weights of the authors' class."""
    with safe_open(FIXTURES / f"{name}.safetensors", "pt") as file:
        return json.loads(file.metadata()["shapes"])


def loaded(folder, **how):
    pipe = mmspec.Pipeline.from_pretrained(folder, **how)
    pipe.set_progress_bar_config(disable=True)
    return pipe


SEEN = 96
"""Of long pictures so many units are drawn again with the authors' noise."""


def sampled(pipe, size, theirs, scale, do_sample=True, **how):
    """The codes that `generate` of the converted model draws with the noise that the authors' program drew."""
    null = pipe.null_ids(Ids(theirs["prompt"], torch.ones_like(theirs["prompt"]))).ids
    grid = chameleon_grid(pipe.model, theirs["prompt"], *size)
    torch.manual_seed(5)
    with mmspec.enable(pipe.model, "gs-sjd", k=8) as speculation:
        ids = pipe.model.generate(
            theirs["prompt"], negative_prompt_ids=null, guidance_scale=scale, prefix_allowed_tokens_fn=grid,
            max_new_tokens=min(grid.length, SEEN), do_sample=do_sample, **how,
        )  # fmt: skip
    assert speculation.report.method == "gs-sjd"
    return ids[0, theirs["prompt"].shape[1] :]


def test_lumina_draws_what_its_authors_draw(lumina):
    theirs = read("lumina")
    pipe = loaded(lumina, method="gs-sjd", k=8)
    drawn = pipe("a red fox", height=12, width=8, temperature=0, output_type="pt")
    assert pipe.sampling.guidance_scale == 4.0
    assert torch.equal(pipe.ids_of(["a red fox"]).ids, theirs["prompt"])
    assert torch.equal(drawn.codes[0], theirs["greedy"][:-1].unflatten(0, (6, 5))[:, :4])
    assert pixels_apart(drawn.images, theirs["pixels"]) <= 1
    assert torch.equal(sampled(pipe, (6, 4), theirs, 4.0, top_k=50), theirs["sampled"])
    assert pipe.default_size == (32, 32)


def test_anole_draws_what_its_authors_draw(anole):
    theirs = read("anole")
    pipe = loaded(anole, method="gs-sjd", k=16)
    assert torch.equal(pipe.ids_of(["a red fox"]).ids, theirs["prompt"])
    greedy = sampled(pipe, (32, 32), theirs, 3.0, do_sample=False)
    assert torch.equal(greedy, theirs["greedy"][:SEEN])
    seen = (pipe.decode_units(theirs["greedy"][None]) + 1) / 2
    assert pixels_apart(seen, theirs["pixels"]) <= 1
    how = {"temperature": 0.7, "top_p": 0.9, "top_k": 0}
    assert torch.equal(sampled(pipe, (32, 32), theirs, 3.0, **how), theirs["sampled"][:SEEN])


def test_janus_draws_what_its_authors_draw(janus):
    theirs = read("janus")
    pipe = loaded(janus, method="gs-sjd", k=8)
    ids = pipe.ids_of([" a red fox"]).ids
    assert torch.equal(ids, theirs["prompt"]) and pipe.sampling.guidance_scale == 5.0
    drawn = pipe("a red fox", temperature=0)
    assert torch.equal(drawn.codes.flatten(), theirs["greedy"][0])
    condition = pipe.encode_prompt("a red fox", num_images_per_prompt=2)
    torch.manual_seed(5)
    source = TorchSource(torch.default_generator, 2, torch.device("cpu"))
    warp = Warp.sampling(temperature=12.0, guidance=5.0)
    made = pipe.decoder().generate(condition, 16, source=source, warp=warp)
    assert torch.equal(torch.stack(made.units), theirs["sampled"])
    pixels = pipe.decode_units(theirs["sampled"])
    assert_near(pixels, theirs["pixels"].clamp(-1, 1), 1e-4)


def test_emu3_draws_what_its_authors_draw(emu3):
    theirs = read("emu3")
    pipe = loaded(emu3, method="gs-sjd", k=8)
    call = {"negative_prompt": "blue bird", "height": 32, "width": 48}
    drawn = pipe("a red fox 42", temperature=0, output_type="pt", **call)
    assert torch.equal(pipe.ids_of(["a red fox 42"]).ids, theirs["prompt"])
    assert torch.equal(pipe.ids_of(["blue bird"]).ids, theirs["negative"])
    cells = theirs["greedy"][:28].unflatten(0, (4, 7))[:, :6]
    assert torch.equal(drawn.codes[0], cells)
    theirs_seen = (theirs["pixels"].clamp(-1, 1) + 1) / 2
    assert_near(drawn.images, theirs_seen, 1e-4)
    grid = emu3_grid(pipe.model, theirs["prompt"], 4, 6)
    with mmspec.enable(pipe.model, "gs-sjd", k=8):
        torch.manual_seed(5)
        ids = pipe.model.generate(
            theirs["prompt"], negative_prompt_ids=theirs["negative"], guidance_scale=3.0, do_sample=True,
            prefix_allowed_tokens_fn=grid, max_new_tokens=grid.length, top_k=16, temperature=8.0,
        )  # fmt: skip
    assert torch.equal(ids[0, theirs["prompt"].shape[1] :], theirs["sampled"])


def sampled_as(pipe, prompt, null, grid, scale, before=0, do_sample=True, **how):
    """As `sampled`; `before` is how many units their program had drawn before the picture began."""
    with mmspec.enable(pipe.model, "gs-sjd", k=8):
        torch.manual_seed(5)
        for _ in range(before):
            torch.empty(len(prompt), pipe.model.config.vocab_size).exponential_()
        ids = pipe.model.generate(
            prompt, attention_mask=torch.ones_like(prompt), negative_prompt_ids=null, guidance_scale=scale,
            prefix_allowed_tokens_fn=grid, max_new_tokens=min(grid.length, SEEN), do_sample=do_sample, **how,
        )  # fmt: skip
    return ids[:, prompt.shape[1] :]


def test_liquid_draws_what_its_authors_draw(liquid):
    theirs = read("liquid")
    pipe = loaded(liquid, method="gs-sjd", k=16)
    first = len(files.LIQUID_WORDS)
    assert pipe.sampling == Sampling(7.0, 0.99, 4096, 0.96)
    assert pipe.decode_units(theirs["greedy"] + first).shape == (1, 3, 64, 64)  # two pixels a code in the small VQ
    prompt, null = pipe.ids_of(["a red fox"] * 4), pipe.null_ids(pipe.ids_of(["a red fox"] * 4))
    grid = pipe.constraint_of(prompt.ids)
    greedy = sampled_as(pipe, prompt.ids[:1], null.ids[:1], grid, 7.0, do_sample=False)
    assert torch.equal(greedy - first, theirs["greedy"][:, :SEEN])
    ids = sampled_as(pipe, prompt.ids, null.ids, grid, 7.0, temperature=0.99, top_k=40)
    assert torch.equal(ids - first, theirs["sampled"][:, :SEEN])


def test_simplear_draws_what_its_authors_draw(simplear):
    theirs = read("simplear")
    pipe = loaded(simplear, method="gs-sjd", k=8)
    first = len(files.SIMPLEAR_WORDS)
    drawn = pipe("a red fox", height=64, width=64, temperature=0, output_type="latent")
    prompt = pipe.ids_of(["a red fox"])
    assert torch.equal(prompt.ids, theirs["prompt"]) and torch.equal(pipe.null_ids(prompt).ids, theirs["negative"])
    assert torch.equal(drawn.codes[0].flatten() - first, theirs["greedy"])
    ids = sampled_as(pipe, prompt.ids, theirs["negative"], pipe.constraint_of(prompt.ids), 6.0, top_k=40)
    assert torch.equal(ids[0] - first, theirs["sampled"])


def test_pixels_without_a_decoder_are_refused_before_a_pass_and_codes_are_a_file(simplear, tmp_path, monkeypatch):
    pipe, out = loaded(simplear), tmp_path / "fox.safetensors"
    asked = ["generate", "image", "a red fox", "--model", str(simplear), "--height", "64", "--width", "64", "-o"]
    run = CliRunner().invoke(build(), [*asked, str(out)])
    assert run.exit_code == 0, run.exception
    codes = pipe("a red fox", height=64, width=64, seed=0, output_type="latent").codes
    assert torch.equal(safetensors.torch.load_file(out)["codes"], codes)
    monkeypatch.setattr(Decoder, "rounds", None)
    with pytest.raises(ValueError, match=r"no decoder of its codes; .* -o FILE.safetensors"):
        pipe("a red fox", height=64, width=64)


def test_emu35_draws_what_its_authors_draw(emu35):
    theirs = read("emu3.5")
    pipe = loaded(emu35, method="gs-sjd", k=8)
    drawn = pipe("a red fox", height=48, width=80, temperature=0, output_type="latent")
    prompt = pipe.ids_of(["a red fox"])
    assert torch.equal(prompt.ids, theirs["prompt"]) and torch.equal(pipe.null_ids(prompt).ids, theirs["negative"])
    assert torch.equal(drawn.codes[0], theirs["greedy"].unflatten(0, (3, 6))[:, :5])
    how = {"top_k": 8, "temperature": 6.0, "before": 4}
    ids = sampled_as(pipe, prompt.ids, theirs["negative"], pipe.constraint_of(prompt.ids), 5.0, **how)
    assert torch.equal(ids[0], theirs["sampled"])
    assert_decodes_as(pipe, read("ibq"))


def test_lumina2_draws_what_its_authors_draw(lumina2):
    theirs = read("lumina2")
    pipe = loaded(lumina2, method="gs-sjd", k=8)
    drawn = pipe("a red fox", height=32, width=64, temperature=0, output_type="latent")
    prompt = pipe.ids_of(["a red fox"])
    assert torch.equal(prompt.ids, theirs["prompt"]) and pipe.null_ids(prompt).ids.tolist() == [
        [151665, 151672, 151673]
    ]
    assert torch.equal(drawn.codes[0], theirs["greedy"][:-1].unflatten(0, (4, 9))[:, :8])
    ids = sampled_as(pipe, prompt.ids, pipe.null_ids(prompt).ids, pipe.constraint_of(prompt.ids), 4.0, top_k=50)
    assert torch.equal(ids[0], theirs["sampled"])
    assert_decodes_as(pipe, read("movqgan"))


def assert_decodes_as(pipe, theirs):
    """Codes of a picture of the last call's size become the authors' pixels."""
    pixels = pipe.decode_units(theirs["codes"].flatten(1) + pipe.model.config.grid_language["first"])
    assert pixels.shape == (1, 3, *(pipe.factor * cells for cells in pipe.size)) and theirs["pixels"].abs().max() > 1
    assert_near(pixels, theirs["pixels"].clamp(-1, 1), 1e-4)


def pixels_apart(ours, theirs):
    """The greatest difference of pixels in steps of 1 / 255; the authors round down."""
    return int(((ours[0].permute(1, 2, 0) * 255).int() - theirs).abs().max())


NAMES = ["lumina", "anole", "janus", "emu3", "liquid", "simplear", "emu3.5", "lumina2"]
VQ = {"lumina": "tokenizer", "anole": "tokenizer", "liquid": "tokenizer", "emu3": "Emu3-VisionTokenizer"}
VQ |= {"emu3.5": "Emu3.5-VisionTokenizer/model.ckpt", "lumina2": "movqgan_270M.ckpt"}
ASKED = {"lumina": {"size": 64}, "llamagen": {"grid": 4, "n_head": 4}}


def test_another_process_loads_the_folders_without_code(place, published):
    said = "import sys, mmspec\nfor name in sys.argv[1:]:\n    load = mmspec.Pipeline.from_pretrained\n"
    said += "    print(type(load(name, trust_remote_code=False)).__name__)"
    folders = [str(place / name) for name in NAMES]
    made = subprocess.run([sys.executable, "-c", said, *folders], capture_output=True, text=True, check=True)
    assert made.stdout.split() == [type(loaded(folder)).__name__ for folder in folders]
    assert not list(place.rglob("*.py"))
    with pytest.raises(ValueError, match="runs no code that comes with a model"):
        mmspec.Pipeline.from_pretrained(folders[0], trust_remote_code=True)


@pytest.fixture(scope="module")
def published(place, lumina, anole, janus, emu3, liquid, simplear, emu35, lumina2):
    """The published files of every layout of pictures, by its name and the name of the part."""
    state = parity.read(Path(__file__).parent / "parity" / "llamagen_c2i.safetensors")[0]
    torch.save({"model": state, "args": argparse.Namespace(gpt_model="GPT-B")}, place / "c2i.pt")
    with torch.device("meta"):
        sizes = {key: value.shape for key, value in published_vq.published(LlamaGenVQ().state_dict()).items()}
    torch.save({key: torch.zeros(1).expand(shape) for key, shape in sizes.items()}, place / "vq.pt")
    for part in ("dit", "vae"):
        torch.save(parity.read(FIXTURES.parents[1] / "video" / "parity" / f"oasis_{part}.safetensors")[0], place / part)
    mar = files.write_mar(place / "mar", shapes("mar"))
    return {
        ("lumina", "model"): place / "Lumina",
        ("anole", "model"): place / "7b",
        ("janus", "model"): place / "Janus",
        ("emu3", "model"): place / "Emu3-Gen",
        ("emu3", "vq"): place / "Emu3-VisionTokenizer",
        ("liquid", "model"): place / "Liquid",
        ("simplear", "model"): place / "SimpleAR",
        ("emu3.5", "model"): place / "Emu3.5",
        ("lumina2", "model"): place / "Lumina-2",
        ("lumina2", "vq"): place / "movqgan_270M.ckpt",
        ("llamagen", "transformer"): place / "c2i.pt",
        ("llamagen", "vq"): place / "vq.pt",
        ("mar", "transformer"): mar / "checkpoint-last.pth",
        ("mar", "vae"): mar / "kl16.ckpt",
        ("oasis", "transformer"): place / "dit",
        ("oasis", "vae"): place / "vae",
    }


TYPED = ("liquid", "simplear")  # whose layers transformers loads as a text's


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[] if n in TYPED else pytest.mark.slow) for n in (*NAMES, "mar")]
)
def test_the_command_in_a_refusal_makes_the_folder_when_it_is_typed(name, published, tmp_path):
    said = advised(published, name)
    words = {"VQ": str(published["lumina", "model"].parent / VQ.get(name, ".")), "FOLDER": str(tmp_path / "out")}
    words |= {f"{key}={key.upper()}": f"{key}={value}" for key, value in ASKED.get(name, {}).items()}
    argv = [words.get(word, word) for word in shlex.split(re.search(r"mmspec (convert .* -o FOLDER)", said)[1])]
    more = ["--opt", "num_heads=4"] if name == "mar" else []
    made = CliRunner().invoke(build(), [*argv, *more])
    assert made.exit_code == 0, (made.output, made.exception)
    mmspec.Pipeline.from_pretrained(tmp_path / "out")


def advised(published, name):
    """What a pipeline's loader says of the first part of published files."""
    file = next(file for (owner, _), file in published.items() if owner == name)
    with pytest.raises(ValueError) as refused:
        mmspec.Pipeline.from_pretrained(file.parent if name == "mar" else file)
    return str(refused.value)


@pytest.mark.parametrize("name", [*NAMES, "llamagen", "mar"])
def test_authors_folders_are_pointed_to_the_command_that_converts_them(name, published):
    said, place = advised(published, name), published["lumina", "model"].parent
    layout = layouts()[name]
    assert re.match(rf"{place}/\S+ is as the authors of {name} publish it; .*: mmspec convert {name} {place}/", said)
    missing = [part for part in layout.parts if (name, part.name) not in published or name not in ("mar",)][1:]
    assert all(f"; {part.name.upper()}: {part.holds}" in said for part in missing)
    assert ("--opt" in said) == (name in ASKED) and "safe_serialization" not in said


def test_the_command_line_says_it_too(published):
    file = str(published["liquid", "model"])
    made = CliRunner().invoke(build(), ["generate", "image", "a red fox", "--model", file])
    assert str(made.exception) == advised(published, "liquid")


def test_a_part_that_is_no_model_is_named(published):
    with pytest.raises(
        ValueError, match=r"tokenizer is a part of 'lumina' or of 'anole' or of 'liquid' or of 'emu3\.5'"
    ):
        mmspec.Pipeline.from_pretrained(published["lumina", "model"].parent / "tokenizer")


@pytest.mark.parametrize("name", ["gemma", "qwen2"])
def test_a_text_model_of_the_same_layers_is_a_text_model(name, tmp_path):
    build_model(name).save_pretrained(tmp_path)
    (tmp_path / "tokenizer.json").write_text(json.dumps(files.words_file({"<unk>": 0, "a": 1}, ["<unk>"])))
    assert type(mmspec.Pipeline.from_pretrained(tmp_path)).__name__ == "TextPipeline"


def test_what_needs_no_conversion_is_told_so(simplear, tmp_path):
    tiny_chameleon().save_pretrained(tmp_path / "theirs")
    tiny_emu3().save_pretrained(tmp_path / "emu3")
    for layout, folder in (("simplear", simplear), ("lumina", tmp_path / "theirs"), ("emu3", tmp_path / "emu3")):
        with pytest.raises(
            ValueError, match=f"{folder.name}.*: it needs no conversion, mmspec.Pipeline.from_pretrained"
        ):
            layouts()[layout].convert([folder], tmp_path / "out", ASKED.get(layout, {}))


@pytest.mark.parametrize("model", UNTAKEN, ids=lambda model: model.name)
def test_a_model_that_nothing_here_reads_is_named(model, tmp_path):
    """By its name where a layout is asked for, by the name of its repository, and by its files."""
    hub, named = KNOWN_AS[model.name]
    folder = tmp_path / "downloaded"
    folder.mkdir()
    for name in named:
        torch.save({}, folder / name)
    said = [str(CliRunner().invoke(build(), ["convert", model.name.lower(), "x.pt", "-o", "out"]).exception)]
    for place in (hub, folder)[: 2 if named else 1]:
        with pytest.raises(ValueError) as refused:
            mmspec.Pipeline.from_pretrained(str(place))
        said.append(str(refused.value))
    assert set(said) == {f"{model.name} {model.why}: mmspec reads no files of it. Instead: {model.instead}"}
    assert re.search(r"mmspec convert (\w+)\)$", model.instead)[1] in layouts()


KNOWN_AS = {
    "VAR": ("FoundationVision/var", ["var_d16.pth", "vae_ch160v4096z32.pth"]),
    "Infinity": ("FoundationVision/Infinity", ["infinity_2b_reg.pth", "infinity_vae_d32reg.pth"]),
    "HART": ("mit-han-lab/hart-0.7b-1024px", []),
    "RAR": ("yucornetto/RAR", ["rar_xl.bin", "maskgit-vqgan-imagenet-f16-256.bin"]),
    "Open-MAGVIT2": ("TencentARC/Open-MAGVIT2-AR-B-256-resolution", []),
    "Harmon": ("wusize/Harmon-1_5B", ["harmon_1.5b.pth"]),
    "Cosmos": ("nvidia/Cosmos-1.0-Autoregressive-4B", []),
    "BAGEL": ("ByteDance-Seed/BAGEL-7B-MoT", ["ae.safetensors", "ema.safetensors", "llm_config.json"]),
    "Show-o": ("showlab/show-o-512x512", []),
    "X-Omni": ("X-Omni/X-Omni-En", []),
}


def test_a_hub_name_of_a_layout_is_told_what_to_do_with_its_files():
    with pytest.raises(ValueError, match=r"download it, then mmspec convert emu3$"):
        mmspec.Pipeline.from_pretrained("BAAI/Emu3-Gen")


@pytest.mark.parametrize("name", [*NAMES, "llamagen", "mar", "oasis"])
def test_files_of_another_model_are_refused_by_its_name(name, published, tmp_path):
    given = ASKED.get(name, {"action_vectors": [[0.0] * 25]} if name == "oasis" else {})
    beside = [published["lumina", "model"].parent / VQ[name]] if name in VQ else []
    for (owner, part), file in published.items():
        if owner != name:
            with pytest.raises(ValueError) as refused:
                layouts()[name].convert([file, *beside], tmp_path / "out", given)
            said = str(refused.value)
            assert f"the {part} of {owner!r}" in said or f" {owner!r}" in said or said.endswith(f"convert {owner}"), (
                said
            )
    if name not in ("lumina", "anole", "liquid", "emu3.5"):
        with pytest.raises(ValueError, match="it is the vq of 'lumina' or of 'anole'"):
            layouts()[name].convert([published["lumina", "model"].parent / "tokenizer"], tmp_path / "out", given)
    assert not (tmp_path / "out").exists()


def test_a_vq_of_another_number_of_codes_is_refused(published, chameleon_vq, ibq, tmp_path):
    for name, vq, counts in (("emu3.5", chameleon_vq, "24 codes, the VQ has 8192"), ("liquid", ibq, "has 24")):
        with pytest.raises(ValueError, match=counts):
            layouts()[name].convert([published[name, "model"], vq], tmp_path / "out", {})


@pytest.mark.parametrize(
    ("name", "height", "said"),
    [
        ("anole", 30, "draws 64 × 64 pixels"),
        ("janus", 16, "draws 8 × 8 pixels"),
        ("emu3", 28, "multiples of 8 pixels, and not 28"),
        ("liquid", 256, "this model draws 512 × 512 pixels"),
        ("simplear", 60, "multiples of 16 pixels, and not 60"),
        ("emu3.5", 0, "multiples of 16 pixels, and not 0"),
        ("lumina2", 40, "multiples of 32 pixels"),
    ],
)
def test_sizes_of_no_grid_are_refused_before_a_pass(name, height, said, place, published, monkeypatch):
    monkeypatch.setattr(Decoder, "rounds", None)
    with pytest.raises(ValueError, match=said):
        loaded(place / name, method="plain")("a red fox", height=height, output_type="latent")


@pytest.mark.parametrize("name", NAMES)
def test_an_empty_negative_prompt_is_the_null_prompt(name, place, published):
    pipe = loaded(place / name, method="plain")
    words = ["a red fox", "blue bird"]
    null, given, mixed = (
        pipe.encode_prompt(words, negative_prompt=away, num_images_per_prompt=2).guiding
        for away in (None, "", ["", "a blue bird"])
    )
    assert torch.equal(null.null, given.null) and torch.equal(null.null_mask, given.null_mask)
    assert_says(mixed, 1, null.null[1], null.null_mask[1])
    named = pipe.negative_ids(["a blue bird"])
    assert_says(mixed, 2, named.ids[0], named.mask[0])
    assert mixed.null_mask.any(0).all(), "no padding that no row needs"


def assert_says(guiding, row, ids, mask):
    """A row is led away from these ids, padding aside."""
    assert guiding.null[row][guiding.null_mask[row].bool()].tolist() == ids[mask.bool()].tolist()


def test_simplear_words_flaws_as_flaws(simplear):
    pipe = loaded(simplear, method="plain")
    away = pipe.encode_prompt("a red fox", negative_prompt="bad hands").guiding.null
    assert "realistic" not in pipe.processor.decode(away[0])
    authors = re.search("of (.*)<.soi", GRIDS["simplear"].null)[1]
    said, null = (pipe.encode_prompt("a red fox", negative_prompt=text).guiding.null for text in (authors, None))
    assert torch.equal(said, null)
    steered, _ = pipe.led_away(["bad hands"], null, None)  # a callback's words are negative prompts, too
    assert torch.equal(steered[:, -away.shape[1] :], away)


def test_a_converted_emu3_draws_pictures_of_its_published_area(emu3):
    pipe = loaded(emu3, method="plain")
    assert pipe.default_size == (4, 4) and pipe.side == 32  # image_area of its published configuration: 32 * 32
    assert pipe("a red fox", seed=0, output_type="latent").codes.shape == (1, 4, 4)


def test_a_decoder_beside_the_model_is_the_pipelines_own(anole, tmp_path):
    """The layout of transformers, with the decoder that transformers leaves out, under its published keys."""
    theirs, pipe = read("anole"), loaded(anole, method="plain")
    pipe.model.save_pretrained(tmp_path / "hf")
    pipe.processor.save_pretrained(tmp_path / "hf")
    shutil.copytree(tmp_path / "hf", tmp_path / "none")
    shutil.copytree(tmp_path / "hf", tmp_path / "half")
    decoder = {key: value for key, value in files.formula(files.vqgan()).items() if key.startswith("decoder.")}
    add_weights(tmp_path / "hf", {f"model.vqmodel.{key}": value for key, value in decoder.items()})
    inside = loaded(tmp_path / "hf", method="plain")
    assert torch.equal(inside.decode_units(theirs["greedy"][None]), pipe.decode_units(theirs["greedy"][None]))
    half = loaded(tmp_path / "hf", method="plain", dtype="bfloat16")
    assert half.vq.dtype == torch.bfloat16
    with pytest.raises(ValueError, match="has no autoencoder, and transformers' Chameleon decodes no codes: give vq="):
        loaded(tmp_path / "none")
    first = dict([next(iter(decoder.items()))])
    add_weights(tmp_path / "half", {f"model.vqmodel.{key}": value for key, value in first.items()})
    with pytest.raises(ValueError, match=r"the autoencoder inside of .*half: "):
        loaded(tmp_path / "half")


def add_weights(folder, more):
    state = safetensors.torch.load_file(folder / "model.safetensors")
    safetensors.torch.save_file({**state, **more}, folder / "model.safetensors", {"format": "pt"})


@pytest.mark.parametrize("name", ["anole", "liquid"])
def test_a_folder_of_a_vq_that_is_not_there_is_named(name, place, published):
    with pytest.raises(ValueError, match="there is no folder 'nowhere/vq'; vq= is diffusers' VQModel, or a folder of"):
        loaded(place / name, vq="nowhere/vq")
    assert isinstance(loaded(place / name, vq=str(place / name / "vq")).vq, VQModel)


@pytest.mark.parametrize("name", VQ)
def test_a_missing_vq_is_named(name, published, tmp_path):
    with pytest.raises(ValueError, match=f"{name!r} lacks the vq \\("):
        layouts()[name].convert([published[name, "model"]], tmp_path / "out", ASKED.get(name, {}))


def test_sizes_that_no_grid_has_are_refused(published, lumina, chameleon_vq, tmp_path):
    files_of = [published["lumina", "model"], chameleon_vq]
    for size, said in (
        (62, "multiples of 4 pixels per side, and not 62"),
        (400, "the tokenizer has no <reserved08900>"),
    ):
        with pytest.raises(ValueError, match=said):
            layouts()["lumina"].convert(files_of, tmp_path / "out", {"size": size})
    with pytest.raises(ValueError, match="even numbers of codes"):
        loaded(lumina)("a red fox", height=14, width=8)


@pytest.mark.parametrize(
    ("name", "file", "word"),
    [
        ("lumina", "Lumina/tokenizer.json", "<reserved08799>"),
        ("anole", "tokenizer/text_tokenizer.json", "<racm3:break>"),
        ("janus", "Janus/tokenizer.json", "<begin_of_image>"),
        ("emu3", "Emu3-Gen/emu3_vision_tokens.txt", "<|image token|>"),
        ("liquid", "Liquid/tokenizer.json", "<boi>"),
        ("simplear", "SimpleAR/tokenizer.json", "<|soi|>"),
        ("emu3.5", "Emu3.5/emu3_vision_tokens.txt", "<|image end|>"),
        ("lumina2", "Lumina-2/tokenizer.json", "<eoss>"),
    ],
)
def test_a_tokenizer_without_control_words_is_refused(name, file, word, published, tmp_path):
    source = published["lumina", "model"].parent
    parts = published[name, "model"].name, *filter(None, [VQ.get(name)])
    given = [
        shutil.copytree(source / part, tmp_path / part) if (source / part).is_dir() else source / part for part in parts
    ]
    text = (tmp_path / file).read_text()
    assert word in text
    (tmp_path / file).write_text(text.replace(word, "<no word>"))
    with pytest.raises(ValueError, match=re.escape(f"lacks {word}")):
        layouts()[name].convert(given, tmp_path / "out", ASKED.get(name, {}))


@pytest.mark.parametrize("name", ["lumina", "anole", "janus", "emu3"])
def test_a_config_of_another_model_is_refused(name, published, tmp_path):
    folder = shutil.copytree(published[name, "model"], tmp_path / "model")
    (folder / "config.json").write_text('{"model_type": "llama"}')
    (folder / "params.json").write_text("{}")
    source = published["lumina", "model"].parent
    vq = {"janus": [], "emu3": [source / "Emu3-VisionTokenizer"]}.get(name, [source / "tokenizer"])
    with pytest.raises(ValueError, match=r"describes a llama, and|does not say n_heads"):
        layouts()[name].convert([folder, *vq], tmp_path / "out", ASKED.get(name, {}))


def test_the_first_janus_is_asked_without_words_for_roles(published, tmp_path):
    folder = shutil.copytree(published["janus", "model"], tmp_path / "model")
    words = (folder / "tokenizer.json").read_text()
    (folder / "tokenizer.json").write_text(words.replace("<|User|>", "User").replace("<|Assistant|>", "Assistant"))
    layouts()["janus"].convert([folder], tmp_path / "out", {})
    pipe = loaded(tmp_path / "out", method="plain")
    chat = [{"role": "user", "content": [{"type": "text", "text": "a red fox"}]}]
    asked = pipe.processor.apply_chat_template([chat], tokenize=False, add_generation_prompt=True)
    assert asked == ["User: a red fox\n\nAssistant:"]


def test_weights_without_a_place_are_refused(published, chameleon_vq, tmp_path):
    folder = shutil.copytree(published["anole", "model"], tmp_path / "7b")
    state = torch.load(folder / "consolidated.pth")
    torch.save(state | {"layers.0.attention.gate.weight": torch.ones(2)}, folder / "consolidated.pth")
    with pytest.raises(ValueError, match=r"1 keys unexpected \(model.layers.0.attention.gate.weight\)"):
        layouts()["anole"].convert([folder, chameleon_vq], tmp_path / "out", {})
    vq = shutil.copytree(chameleon_vq, tmp_path / "tokenizer")
    torch.save({"state_dict": files.formula(files.vqgan() | {"decoder.extra.bias": (4,)})}, vq / "vqgan.ckpt")
    with pytest.raises(ValueError, match=r"1 keys unexpected \(vq.decoder.extra.bias\)"):
        layouts()["anole"].convert([published["anole", "model"], vq], tmp_path / "out", {})


def test_llamagen_draws_what_its_authors_draw():
    """The parity fixtures, which a second writing of the maths made, are theirs, too; and noise of theirs is ours."""
    theirs = read("llamagen")
    for kind in ("c2i", "t2i"):
        state, io, config = parity.read(FIXTURES.parent / "parity" / f"llamagen_{kind}.safetensors")
        assert torch.equal(theirs[f"{kind}_greedy"], io["greedy_cfg3"])
        model = LlamaGenTransformer.from_official(state, grid=4, n_head=config["n_head"])
        decoder = Decoder(LlamaGenTarget(model), ImageJacobi(), k=6)
        torch.manual_seed(5)
        source = TorchSource(torch.default_generator, 2, torch.device("cpu"))
        warp = Warp.sampling(temperature=2.0, top_k=12, guidance=3.0)
        made = decoder.generate(Condition(io["cond"]), 16, source=source, warp=warp)
        assert torch.equal(torch.stack(made.units).int(), theirs[f"{kind}_sampled"])
    assert torch.equal(theirs["t2i_masked"], io["greedy_cfg3_masked"])


def test_the_parity_fixtures_of_oasis_are_what_its_authors_classes_give():
    theirs, folder = read("oasis"), FIXTURES.parents[1] / "video" / "parity"
    for name in ("oasis_dit", "oasis_vae"):
        for output, values in parity.read(folder / f"{name}.safetensors")[1].items():
            if output in theirs:
                torch.testing.assert_close(theirs.pop(output), values, rtol=1e-4, atol=1e-4)
    assert not theirs


@pytest.mark.parametrize("wrong", ["x", -8, 0, 7, 10**12, None, [1]])
@pytest.mark.parametrize("key", ["hidden_size", "num_attention_heads", "num_hidden_layers"])
def test_a_config_with_a_wrong_number_is_refused(key, wrong, published, tmp_path):
    folder = shutil.copytree(published["emu3", "model"], tmp_path / "model")
    said = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(said | {key: wrong}))
    vq = published["lumina", "model"].parent / "Emu3-VisionTokenizer"
    with pytest.raises(ValueError, match=r"model"):
        layouts()["emu3"].convert([folder, vq], tmp_path / "out", {})
    assert not (tmp_path / "out").exists()
