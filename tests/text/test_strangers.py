"""Folders that hold no model which can be loaded: the message says what they are."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

import mmspec
from mmspec.api.stored import Stored
from mmspec.hosts.loading import load_model, load_tokenizer
from mmspec.hosts.strangers import kind_of
from tests.draws.folder_kinds import MARK, ORIGINALS, STRANGERS, target, write_model


@pytest.mark.parametrize("name", [name for name in STRANGERS if name not in ("pipeline", "GPTQ")])
def test_what_a_folder_is(name: str, tmp_path: Path) -> None:
    write, words = STRANGERS[name]
    folder = tmp_path / "folder"
    folder.mkdir()
    write(folder, str(tmp_path / MARK))
    with pytest.raises(ValueError) as refused:
        load_model(str(folder))
    assert any(word in str(refused.value) for word in words) and "folder" in str(refused.value)
    assert not (tmp_path / MARK).exists()


def test_a_head_in_the_place_of_a_model(tmp_path: Path) -> None:
    """A drafter takes it, and the message names both."""
    ORIGINALS["head:eagle:eagle-3"].write(tmp_path / "head", "float32", "one")
    with pytest.raises(ValueError, match=r"it is a head: drafter='.*head', which eagle drafts with"):
        load_model(str(tmp_path / "head"))


def test_heads_in_a_file_of_another_name(tmp_path: Path) -> None:
    save_file({"0.0.linear.weight": torch.zeros(4, 4)}, tmp_path / "medusa_lm_head.safetensors")
    assert kind_of(tmp_path) == "its weights are called medusa_lm_head.safetensors: of a head, name the method, too"
    with pytest.raises(ValueError, match="name the method, too"):
        mmspec.enable(target(), drafter=str(tmp_path))


def test_a_tokenizer_of_nothing(tmp_path: Path) -> None:
    """Some classes of transformers make one without a file."""
    write_model(tmp_path / "model", "cohere", "float32", "one")
    with pytest.raises(ValueError, match=r"model' has no tokenizer \(tokenizer.json\)"):
        load_tokenizer(str(tmp_path / "model"))


def test_a_pickle_beside_the_parts_of_a_pipeline(tmp_path: Path) -> None:
    """A folder that the index does not name is no part."""
    (tmp_path / "model_index.json").write_text(json.dumps({"_class_name": "TextPipeline", "model": ["a", "B"]}))
    for part in ("original", "model"):
        (tmp_path / part).mkdir()
    (tmp_path / "original" / "consolidated.00.pth").touch()
    assert Stored.named(str(tmp_path)) == Stored(tmp_path)
    (tmp_path / "model" / "pytorch_model.bin").touch()
    with pytest.raises(ValueError, match=r"model has its weights as a pickle"):
        Stored.named(str(tmp_path))
