"""A GGUF file as a folder of safetensors, with its tokenizer; transformers does the reading, by the package `gguf`."""

from importlib.util import find_spec
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from mmspec.hosts.remote_code import refusing_code


def refuse_without_reader() -> None:
    """Refuse to read GGUF files, by a `ValueError`, where the package is missing; says how to install it."""
    if find_spec("gguf") is None:
        raise ValueError("reading GGUF files needs the package gguf: pip install 'mmspec[gguf]'")


def convert_gguf(file: Path, folder: Path) -> None:
    """Write the model of a GGUF file into a folder, in float32, in which its numbers are exactly those of the file.

    Raises:
        ValueError: transformers cannot read the file, or not its architecture.
    """
    refuse_without_reader()
    place, name = str(file.parent), file.name
    with refusing_code(f"the GGUF file {name!r}"):
        model = AutoModelForCausalLM.from_pretrained(
            place, gguf_file=name, dtype=torch.float32, trust_remote_code=False
        )
        tokenizer = AutoTokenizer.from_pretrained(place, gguf_file=name, trust_remote_code=False)
    # The weights are plain numbers now: the mark would make transformers look for the file again.
    vars(model.config).pop("quantization_config", None)
    model.hf_quantizer, model.is_quantized = None, False
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
