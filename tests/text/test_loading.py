"""Models by name: folders, shipped names, hub names; weights that are damaged, missing, or a pickle."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import mmspec
from mmspec import shipped
from mmspec.hosts.loading import load_model, load_part, load_tokenizer
from mmspec.hosts.weight_files import read_tensors
from mmspec.kits.pictures.models.official import blank, load_into, read_file
from mmspec.kits.pictures.models.vq import LlamaGenVQ

WEIGHTS = "model.safetensors"


@pytest.fixture
def saved(target: Any, tmp_path: Path) -> Path:
    target.save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def test_a_folder_loads_as_it_was_saved(target: Any, saved: Path, prompts: Callable) -> None:
    model = load_model(str(saved))
    assert not model.training and next(model.parameters()).dtype == torch.float32
    with torch.no_grad():
        assert torch.equal(model(**prompts(3)).logits, target(**prompts(3)).logits)
    assert next(load_model(str(saved), dtype=torch.float16).parameters()).dtype == torch.float16


def test_no_file_decides_where_weights_lie(saved: Path, tmp_path: Path) -> None:
    """At another address MKL sums in another order, and a saved model would draw other numbers than the one it was."""
    vq = LlamaGenVQ(30, ch=32, encoder_ch_mult=(1, 1), decoder_ch_mult=(1, 1), z_channels=32, num_res_blocks=1)
    vq.save_pretrained(tmp_path / "vq")
    for file in (saved / WEIGHTS, tmp_path / "vq" / "diffusion_pytorch_model.safetensors"):
        for more in range(0, 64, 8):  # a header, and 8 bytes that say how long it is, come first
            save_file(load_file(file), file, metadata={"format": "pt", "more": " " * more})
            if int.from_bytes(file.read_bytes()[:8], "little") % 64 == 0:
                break
        assert all(weights.data_ptr() % 64 for weights in load_file(file).values())
        official = blank(LlamaGenVQ, **vq.config) if "vq" in str(file) else None
        if official is not None:
            load_into(official, read_file(file))
            assert not any(weights.data_ptr() % 64 for weights in official.parameters())
        assert not any(weights.data_ptr() % 64 for weights in read_tensors(file, load_file(file)).values())
    for model in (load_model(str(saved)), load_part(LlamaGenVQ, tmp_path / "vq", torch.float32)):
        assert not any(weights.data_ptr() % 64 for weights in model.parameters())


@pytest.mark.parametrize("kept", [0, 5, 100, 0.5, -1])
def test_truncated_weights(saved: Path, kept: float) -> None:
    data = (saved / WEIGHTS).read_bytes()
    (saved / WEIGHTS).write_bytes(data[: int(len(data) * kept) if isinstance(kept, float) else kept])
    with pytest.raises(ValueError, match=r"weights of .*model' are damaged or truncated"):
        load_model(str(saved))


@pytest.mark.parametrize("place", [0, 3, 9, 40])
def test_weights_with_a_damaged_header(saved: Path, place: int) -> None:
    data = bytearray((saved / WEIGHTS).read_bytes())
    data[place] ^= 0xFF
    (saved / WEIGHTS).write_bytes(bytes(data))
    with pytest.raises(ValueError, match="damaged or truncated"):
        load_model(str(saved))


def test_a_missing_or_misshapen_tensor_is_not_made_up(saved: Path) -> None:
    whole, name = load_file(saved / WEIGHTS), "model.layers.1.mlp.up_proj.weight"
    save_file({k: v for k, v in whole.items() if k != name}, saved / WEIGHTS, metadata={"format": "pt"})
    with pytest.raises(ValueError, match=f"1 keys missing .{name}"):
        load_model(str(saved))
    save_file({**whole, name: whole[name][:-1].clone()}, saved / WEIGHTS, metadata={"format": "pt"})
    with pytest.raises(ValueError, match=rf"1 keys of another shape .{name}: \[95, 64\], not \[96, 64\]"):
        load_model(str(saved))


def test_tied_weights_are_not_missing(make_llama: Callable, tmp_path: Path, prompts: Callable) -> None:
    tied = make_llama(tie_word_embeddings=True)
    tied.save_pretrained(tmp_path / "tied")
    assert "lm_head.weight" not in load_file(tmp_path / "tied" / WEIGHTS)
    with torch.no_grad():
        assert torch.equal(load_model(str(tmp_path / "tied"))(**prompts(1)).logits, tied(**prompts(1)).logits)


@pytest.mark.parametrize("text", ["{oops", "{}", '{"model_type": "nonsense"}', '{"model_type": "vit"}'])
def test_a_configuration_that_cannot_be_read(saved: Path, text: str) -> None:
    (saved / "config.json").write_text(text)
    with pytest.raises(ValueError):
        load_model(str(saved))


def test_a_folder_without_a_tokenizer(saved: Path) -> None:
    with pytest.raises(ValueError, match=r"has no tokenizer that can be read \(tokenizer.json\)"):
        load_tokenizer(str(saved))


def test_a_damaged_drafter_is_refused_by_enable_too(target: Any, saved: Path) -> None:
    with mmspec.enable(target, drafter=str(saved)) as spec:
        assert spec.method == "draft-model"
    (saved / WEIGHTS).write_bytes((saved / WEIGHTS).read_bytes()[:-50])
    with pytest.raises(ValueError, match="damaged or truncated"):
        mmspec.enable(target, drafter=str(saved))


class Trap:
    """Runs code when it is unpickled."""

    def __init__(self, place: Path) -> None:
        self.place = place

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.place,)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "weights.pth", "last.ckpt"])
def test_a_pickle_is_refused_and_never_opened(saved: Path, tmp_path: Path, name: str) -> None:
    (saved / WEIGHTS).unlink()
    torch.save(Trap(tmp_path / "sprung"), saved / name)
    with pytest.raises(ValueError, match=f"weights as a pickle .{name}., which can run code; .*save_pretrained"):
        load_model(str(saved))
    assert not (tmp_path / "sprung").exists()


def test_a_pickle_beside_safetensors_is_not_read(saved: Path, tmp_path: Path) -> None:
    torch.save(Trap(tmp_path / "sprung"), saved / "pytorch_model.bin")
    load_model(str(saved))
    assert not (tmp_path / "sprung").exists()


def test_a_folder_without_weights_or_without_anything(saved: Path, tmp_path: Path) -> None:
    (saved / WEIGHTS).unlink()
    for folder in (saved, tmp_path):
        with pytest.raises(ValueError, match=r"has no \*.safetensors file"):
            load_model(str(folder))


def test_a_shipped_name_is_found_without_a_network_and_a_wrong_one_names_the_nearest(
    saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.move(saved, tmp_path / "assets" / "text-14m")
    monkeypatch.setattr(shipped, "folder", lambda name: tmp_path / name)
    assert load_model("mmspec/text-14m").config.vocab_size == 131
    for load in (load_model, load_tokenizer):
        with pytest.raises(ValueError, match="no shipped model is called 'text-14n'; did you mean 'text-14m'"):
            load("mmspec/text-14n")
    with pytest.raises(ValueError, match=r"no model 'nobody/nothing': neither a folder .* Shipped: .*mmspec/text-14m"):
        load_model("nobody/nothing")


@pytest.mark.parametrize("name", ["no-such-folder/no-such-model", "./nowhere", "spaces are no name"])
def test_unknown_names_offline(name: str, target: Any) -> None:
    with pytest.raises(ValueError, match="neither a folder here nor to be had from the hub"):
        load_model(name)
    if "/" in name:
        with pytest.raises(ValueError, match="neither a folder here nor to be had from the hub"):
            mmspec.enable(target, drafter=name)
