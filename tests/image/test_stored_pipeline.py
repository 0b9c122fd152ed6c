"""`model_index.json` of strangers: no code runs, nothing is imported, diffusers never reads it, one line says why."""

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from diffusers import DiffusionPipeline

import mmspec
from mmspec import shipped
from mmspec.api.stored import Stored, outline_of
from mmspec.kits.text.pipeline import TextPipeline
from mmspec_image.janus_pipeline import JanusPipeline
from mmspec_image.pipeline import TextToImagePipeline
from mmspec_video.pipeline import NextFramePipeline

DOORS = [mmspec.Pipeline.from_pretrained, TextToImagePipeline.from_pretrained, outline_of]
PARTS = ["text_encoder", "tokenizer", "transformer", "vq"]


@pytest.fixture
def folder(saved: Path, tmp_path: Path) -> Path:
    """A folder with code wherever some version of diffusers looked for it."""
    folder = shutil.copytree(saved, tmp_path / "pipe")
    code = f"from pathlib import Path\nPath({str(tmp_path / 'sprung')!r}).touch()\nclass My: pass\n"
    places = ["None.py", "pipeline.py", "my.py", "TextToImagePipeline.py", "../my.py", "../outside.py"]
    places += [
        f"{part}/{name}.py" for part in PARTS for name in ("my", "transformers", "mmspec.kits.pictures.models.vq")
    ]
    for place in places:
        (folder / place).write_text(code)
    return folder


@pytest.fixture(autouse=True)
def on_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Modules of the folder could be imported, if anyone tried; and diffusers must not be the one who looks."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)

    def refuse(*args: Any, **how: Any) -> None:
        raise AssertionError("diffusers reads the folder")

    monkeypatch.setattr(DiffusionPipeline, "from_pretrained", refuse)
    monkeypatch.setattr(DiffusionPipeline, "download", refuse)


CHANGES: dict[str, dict[str, Any]] = {
    "os": {"vq": ["os", "system"]},
    "subprocess": {"vq": ["subprocess", "Popen"]},
    "a function of a library": {"vq": ["transformers", "pipeline"]},
    "a class of a library that is no part": {"vq": ["diffusers", "DiffusionPipeline"]},
    "another part": {"vq": ["mmspec.kits.pictures.models.captions", "CaptionEncoder"]},
    "an Auto class": {"text_encoder": ["transformers", "AutoModel"]},
    "a base class of all": {"vq": ["torch.nn", "Module"]},
    "a component file": {"vq": ["my", "My"]},
    "a component file that hides transformers": {"tokenizer": ["transformers", "My"]},
    "a module beside the folder": {"vq": ["outside", "My"]},
    "a module in the folder": {"vq": ["pipe.my", "My"]},
    "a module of ours that is not loaded": {"vq": ["antigravity", "My"]},
    "a path": {"vq": ["../outside", "My"]},
    "a path in the class": {"vq": ["mmspec.kits.pictures.models.vq", "../../My"]},
    "an absolute path": {"vq": ["/tmp/outside", "My"]},
    "a dunder": {"vq": ["mmspec.kits.pictures.models.vq", "__loader__"]},
    "a dunder module": {"vq": ["__main__", "My"]},
    "a dotted class": {"vq": ["mmspec.kits.pictures.models.vq", "nn.Module"]},
    "a private name": {"vq": ["mmspec.kits.pictures.models.vq", "_LlamaGenVQ"]},
    "one name": {"vq": ["LlamaGenVQ"]},
    "three names": {"vq": ["mmspec.kits.pictures.models.vq", "LlamaGenVQ", "more"]},
    "numbers": {"vq": [1, 2]},
    "half a pair": {"vq": ["mmspec.kits.pictures.models.vq", None]},
    "a text": {"vq": "mmspec.kits.pictures.models.vq.LlamaGenVQ"},
    "an object": {"vq": {"library": "os"}},
    "no part": {"vq": None},
    "a part that is left out": {"vq": [None, None]},
    "a deep part": {"vq": [[["os"]], "system"]},
    "a strange part": {"safety_checker": ["os", "system"]},
    "a dunder key": {"__class__": ["os", "system"]},
    "a path key": {"../vq": ["mmspec.kits.pictures.models.vq", "LlamaGenVQ"]},
    "files to leave out": {"_ignore_files": ["x"]},
    "a module key": {"_module": "my"},
    "a custom pipeline": {"_class_name": ["pipeline", "My"]},
    "a custom pipeline by path": {"_class_name": "../outside"},
    "a class that is a number": {"_class_name": 7},
    "no class": {"_class_name": None},
    "a class with an escape": {"_class_name": "\x1b[2JOdd"},
    "a version that is a list": {"_diffusers_version": ["os", "system"]},
    "a name with an escape": {"vq": ["mmspec.kits.pictures.models.vq", "\x1b]0;x\x07\nLlamaGenVQ"]},
    "a key with an escape": {"\x1b[2J\n": 1},
    "a long name": {"vq": ["mmspec.kits.pictures.models.vq", "x" * 100_000]},
}


@pytest.mark.parametrize("case", CHANGES)
@pytest.mark.parametrize("door", DOORS, ids=["Pipeline", "its class", "methods --for"])
def test_an_index_that_names_something_else(case: str, door: Any, folder: Path, tmp_path: Path) -> None:
    index = json.loads((folder / "model_index.json").read_text())
    (folder / "model_index.json").write_text(json.dumps({**index, **CHANGES[case]}))
    before = set(sys.modules)
    with pytest.raises(ValueError) as error:
        door(str(folder))
    assert not (tmp_path / "sprung").exists()
    assert not {"outside", "my", "pipe", "pipe.my", "antigravity"} & (set(sys.modules) - before)
    assert str(error.value).isprintable() and len(str(error.value)) < 900 and "trust_remote" not in str(error.value)


TEXTS = ["", "{", "null", "7", "[]", '"text"', "\x00", "{'a': 1}", "[" * 200_000, '{"a":' * 100_000, "\x1b[2J{"]
BYTES = [text.encode() for text in TEXTS] + [b"\xff\xfe\x00", b'{"a": "' + b"x" * 1_000_001 + b'"}']


@pytest.mark.parametrize("text", BYTES, ids=len)
@pytest.mark.parametrize("door", DOORS, ids=["Pipeline", "its class", "methods --for"])
def test_an_index_that_is_none(text: bytes, door: Any, folder: Path, tmp_path: Path) -> None:
    (folder / "model_index.json").write_bytes(text)
    with pytest.raises(ValueError) as error:
        door(str(folder))
    assert not (tmp_path / "sprung").exists() and str(error.value).isprintable() and len(str(error.value)) < 900


def test_code_beside_a_good_index_does_not_run(folder: Path, tmp_path: Path) -> None:
    pipe = mmspec.Pipeline.from_pretrained(folder)
    assert type(pipe) is TextToImagePipeline and not (tmp_path / "sprung").exists()


def test_the_pipelines_that_load_in_their_own_way_check_it_too(tmp_path: Path) -> None:
    (tmp_path / "model_index.json").write_text('{"_class_name": "X", "model": ["os", "system"]}')
    for kind in (TextPipeline, JanusPipeline):
        with pytest.raises(ValueError, match=r"model is to be a \w+, not 'os\.system'"):
            kind.from_pretrained(tmp_path)


def test_the_outline_of_a_saved_pipeline_of_text(tmp_path: Path) -> None:
    shutil.copytree(shipped.asset("text-1m"), tmp_path / "model")
    index = {"model": ["transformers", "LlamaForCausalLM"], "tokenizer": ["transformers", "TokenizersBackend"]}
    (tmp_path / "model_index.json").write_text(json.dumps({"_class_name": "TextPipeline", **index}))
    assert outline_of(str(tmp_path)).parameters == outline_of("mmspec/text-1m").parameters
    (tmp_path / "model" / "config.json").write_text('{"model_type": "llama", "hidden_size": "wide"}')
    with pytest.raises(ValueError, match="cannot be loaded"):
        outline_of(str(tmp_path))


@pytest.mark.parametrize(
    "settings", [{"fps": "fast"}, {"fps": None}, {"actions": 7}, {"actions": [1]}, {"action_vectors": "ab"}], ids=str
)
def test_settings_have_their_types(settings: dict[str, Any], tmp_path: Path) -> None:
    index = json.loads((shipped.asset("four-courts") / "model_index.json").read_text())
    (tmp_path / "model_index.json").write_text(json.dumps({**index, **settings}))
    with pytest.raises(ValueError, match=f"{next(iter(settings))} cannot be") as error:
        assert Stored(tmp_path, NextFramePipeline).index
    assert str(error.value).isprintable()


@pytest.mark.parametrize("name", ["emoji", "emoji-continuous", "four-courts", "four-courts-tokens"])
def test_what_we_ship_names_its_parts(name: str) -> None:
    folder = shipped.asset(name)
    found = Stored(folder).index
    written = json.loads((folder / "model_index.json").read_text())
    assert {key: kind.__name__ for key, kind in found.parts.items()} == {
        key: value[1] for key, value in written.items() if key in found.parts
    }
    assert found.settings.keys() | found.parts.keys() | {"_class_name", "_diffusers_version"} == written.keys()
