"""Published files of pictures' models, in the forms in which files come, and what `mmspec convert` makes of them."""

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor

import mmspec
from mmspec.kits.pictures.layouts import layouts
from tests.draws.head_files import rounded, write
from tests.support import official_files as files

FIXTURES = Path(__file__).parents[1] / "image/official"
PARTS = ("model", "pytorch_model")


def shapes(name: str) -> files.Shapes:
    """The shapes of the weights of the authors' class."""
    with safe_open(FIXTURES / f"{name}.safetensors", "pt") as file:
        found: files.Shapes = json.loads(file.metadata()["shapes"])
    return found


def janus(folder: Path) -> list[Path]:
    return [files.write_janus(folder / "Janus", shapes("janus"))]


def simplear(folder: Path) -> list[Path]:
    return [files.write_simplear(folder / "SimpleAR", shapes("simplear"))]


def emu3(folder: Path) -> list[Path]:
    of, vq = shapes("emu3"), files.Shapes()
    vq = {key.removeprefix("vq."): of.pop(key) for key in [*of] if key.startswith("vq.")}
    return [files.write_emu3(folder / "Emu3-Gen", of), files.write_emu3_vq(folder / "Emu3-VisionTokenizer", vq)]


def emu35(folder: Path) -> list[Path]:
    vq = files.write_vq(folder / "Emu3.5-VisionTokenizer" / "model.ckpt", shapes("ibq"))
    return [files.write_emu3(folder / "Emu3.5", shapes("emu3.5"), files.EMU35), vq]


def liquid(folder: Path) -> list[Path]:
    return [files.write_liquid(folder / "Liquid", shapes("liquid")), files.write_vqgan(folder / "tokenizer")]


WRITERS: dict[str, Callable[[Path], list[Path]]] = {
    "janus": janus,
    "simplear": simplear,
    "emu3": emu3,
    "emu3.5": emu35,
    "liquid": liquid,
}
"""Layout → what writes its files, and returns what `mmspec convert` is given."""


def write_official(folder: Path, layout: str, dtype: str, form: str) -> list[Path]:
    """Published files in another dtype and form; what `mmspec convert` is given."""
    given = WRITERS[layout](folder)
    for place in (place for place in given if place.is_dir()):
        old = [path for part in PARTS for path in place.glob(f"{part}*") if path.suffix in (".safetensors", ".bin")]
        weights: dict[str, Tensor] = {}
        for path in old:
            weights |= load_file(path) if path.suffix == ".safetensors" else torch.load(path, weights_only=True)
        for path in (*old, *place.glob("*.index.json")):
            path.unlink()
        if weights:
            write(place, rounded(weights, dtype), json.loads((place / "config.json").read_text()), "model", form)
    return given


def converted(given: list[Path], layout: str, out: Path) -> dict[str, Tensor]:
    """The weights of the pipeline that `mmspec convert` writes, in float32, by part and key."""
    layouts()[layout].convert(given, out, {})
    mmspec.Pipeline.from_pretrained(str(out))
    found: dict[str, Tensor] = {}
    for path in sorted(out.rglob("*.safetensors")):
        found |= {f"{path.parent.name} {key}": value.float() for key, value in load_file(path).items()}
    tied = found.get("model model.embed_tokens.weight")
    if tied is not None and torch.equal(found.get("model lm_head.weight", tied), tied):
        found.pop("model lm_head.weight", None)  # a copy of the embedding may be written, or not
    return found


@cache
def usual(layout: str, dtype: str) -> dict[str, Tensor]:
    """The same of files in one piece."""
    with TemporaryDirectory() as folder:
        return converted(write_official(Path(folder), layout, dtype, "one"), layout, Path(folder) / "out")
