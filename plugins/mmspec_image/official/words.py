"""The files beside published weights: a `config.json`, and a tokenizer, which is refused without control words."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedTokenizerFast

from mmspec.hosts.weight_files import CONFIG, refuse_config
from mmspec.registry.printable import shown

KINDS = {
    "chameleon": ("lumina", "lumina2"), "multi_modality": ("janus",), "Emu3": ("emu3", "emu3.5"),
    "Emu3VisionVQ": ("emu3",),
    "gemma": ("liquid",), "qwen2": ("simplear",),
}  # fmt: skip
"""A published `model_type` to the layouts that it may be a part of."""


def published_config(folder: Path, kind: str, layout: str) -> dict[str, Any]:
    """The `config.json` of a published folder."""
    config = refuse_config(folder, {})
    said = config.get("model_type")
    if said != kind:
        others = " or ".join(repr(each) for each in KINDS.get(str(said), ()))
        known = f", which is of {others}" if others else ""
        raise ValueError(f"{shown(folder / CONFIG)} describes a {shown(said)}{known}, and {layout!r} reads a {kind}")
    return config


def read_words(file: Path, needed: Sequence[str] = ()) -> Tokenizer:
    """The tokenizer of a `tokenizer.json`."""
    try:
        words = Tokenizer.from_str(file.read_text(encoding="utf-8"))
    except Exception as error:  # the library raises its own
        raise ValueError(f"{shown(file)} is no tokenizer that can be read: {shown(error)}") from error
    refuse_lacking(file, words.get_vocab(), needed)
    return words


def refuse_lacking(file: Path, vocab: Mapping[str, int], needed: Sequence[str]) -> None:
    """Refuse a tokenizer without words that draw pictures."""
    missing = [word for word in needed if word not in vocab]
    if missing:
        listed = ", ".join(missing[:3]) + ", …" * (len(missing) > 3)
        raise ValueError(f"{shown(file)} lacks {listed}: it is not the tokenizer of this model")


def fast_tokenizer(words: Tokenizer, special: Mapping[str, str], **how: Any) -> PreTrainedTokenizerFast:
    """transformers' tokenizer. A prompt begins with the begin of a text once, whatever the file says."""
    begin = special["bos_token"]
    if words.token_to_id(begin) is None:
        raise ValueError(f"the tokenizer has no word {begin!r}, with which a prompt begins")
    first = [(begin, words.token_to_id(begin))]
    words.post_processor = TemplateProcessing(single=f"{begin} $A", special_tokens=first)
    return PreTrainedTokenizerFast(tokenizer_object=words, **special, **how)
