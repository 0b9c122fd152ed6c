"""`config.json` of a model folder with one value that is not what it was: refused, or read as transformers reads it."""

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

import mmspec
from mmspec.hosts.loading import load_model
from mmspec.shipped import asset

CONFIG = json.loads((asset("text-1m") / "config.json").read_text())
VALUES: tuple[Any, ...] = (None, True, -1, 0, 7, 1.5, float("nan"), "x", [], {"a": 1})
HUGE = {
    "num_hidden_layers": (10**5, 10**7, 10**12),
    "hidden_size": (2**20, 10**9, 10**15),
    "intermediate_size": (10**9, 10**15),
    "vocab_size": (10**9, 10**15),
    "num_attention_heads": (10**7, 10**12),
    "num_key_value_heads": (10**7, 10**12),
    "head_dim": (10**7, 10**12),
}
GREEDY = dict(do_sample=False, max_new_tokens=8, pad_token_id=1)
PROMPT = torch.tensor([[5, 17, 99, 5, 17]])


def folder_with(place: Path, text: str) -> str:
    """The shipped `text-1m` with another `config.json`."""
    for file in asset("text-1m").iterdir():
        if file.name != "config.json":
            (place / file.name).symlink_to(file)
    (place / "config.json").write_text(text)
    return str(place)


def ours(folder: str) -> list[list[int]]:
    model = load_model(folder)
    with mmspec.enable(model, "prompt-lookup", k=3):
        made: list[list[int]] = model.generate(PROMPT, **GREEDY).tolist()
    return made


def theirs(folder: str) -> list[list[int]]:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, trust_remote_code=False).eval()
    made: list[list[int]] = model.generate(PROMPT, **GREEDY).tolist()
    return made


@pytest.mark.parametrize("key,value", itertools.product(sorted(CONFIG), VALUES))
def test_another_value(attempt: Callable, tmp_path: Path, key: str, value: Any) -> None:
    folder = folder_with(tmp_path, json.dumps({**CONFIG, key: value}))
    attempt(lambda: ours(folder), lambda made: made == theirs(folder))


@pytest.mark.parametrize("key,value", [(key, value) for key, values in HUGE.items() for value in values])
def test_a_size_that_no_file_has(attempt: Callable, tmp_path: Path, key: str, value: int) -> None:
    attempt(lambda: ours(folder_with(tmp_path, json.dumps({**CONFIG, key: value}))))


@pytest.mark.parametrize("lacks", sorted(CONFIG))
def test_a_key_that_is_missing(attempt: Callable, tmp_path: Path, lacks: str) -> None:
    folder = folder_with(tmp_path, json.dumps({key: value for key, value in CONFIG.items() if key != lacks}))
    attempt(lambda: ours(folder), lambda made: made == theirs(folder))


DAMAGED = {
    "empty": "",
    "null": "null",
    "list": "[]",
    "number": "7",
    "half": json.dumps(CONFIG)[:40],
    "not utf-8": "\udcff",
    "deep": "[" * 5000,
    "another model": json.dumps({"model_type": "bert"}),
    "no model": json.dumps({"model_type": "x\u001b[31m"}),
    "remote code": json.dumps({**CONFIG, "model_type": "evil", "auto_map": {"AutoConfig": "evil.Config"}}),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_file(attempt: Callable, tmp_path: Path, name: str) -> None:
    folder = folder_with(tmp_path, "{}")
    (tmp_path / "config.json").write_bytes(DAMAGED[name].encode(errors="surrogateescape"))
    attempt(lambda: ours(folder))
