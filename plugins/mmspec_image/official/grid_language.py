"""Liquid, SimpleAR, Emu3.5 and Lumina-mGPT 2.0 as their authors publish them: language models of transformers' layers.

The code in their repositories is not run; their bodies have the keys of transformers' classes.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from diffusers import VQModel
from torch import Tensor
from transformers import (
    ChameleonConfig,
    GemmaConfig,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen3Config,
)

from mmspec.kits.pictures.models.official import Source, blank, from_official
from mmspec.untrusted import read_json
from mmspec_image.grid_language_pipeline import GridLanguagePipeline
from mmspec_image.models.grid_language import BODIES, GRIDS
from mmspec_image.official.chameleon import VOCAB, heads_expanded
from mmspec_image.official.emu3 import emu3_tokenizer
from mmspec_image.official.vq import VQ
from mmspec_image.official.words import fast_tokenizer, published_config, read_words, refuse_lacking

CONFIGS: dict[str, tuple[str, type[PretrainedConfig]]] = {
    "liquid": ("gemma", GemmaConfig),
    "simplear": ("qwen2", Qwen2Config),
    "emu3.5": ("Emu3", Qwen3Config),
    "lumina2": ("chameleon", ChameleonConfig),
}
"""Of every model its published `model_type`, and transformers' configuration of its layers."""


def grid_model(name: str) -> Callable[..., PreTrainedModel]:
    """From published weights and their `config.json` to the model `name` of `BODIES`."""
    kind, (_, config_kind) = BODIES[name], CONFIGS[name]

    def load(source: Source, config: Mapping[str, Any]) -> PreTrainedModel:
        made = config_kind.from_dict({key: value for key, value in config.items() if key != "model_type"})

        def make(state: dict[str, Tensor]) -> PreTrainedModel:
            made.tie_word_embeddings = "lm_head.weight" not in state
            return blank(kind, made)

        def renamed(state: dict[str, Tensor]) -> dict[str, Tensor]:
            if name == "lumina2":
                state = heads_expanded(state, made)
            return (
                state if "lm_head.weight" in state else state | {"lm_head.weight": state["model.embed_tokens.weight"]}
            )

        return from_official(make, source, (VQ,), renamed=renamed)

    return load


def grid_config(name: str) -> Callable[[Path], dict[str, Any]]:
    """From a folder to the argument `config` of `grid_model(name)`."""

    def beside(folder: Path) -> dict[str, Any]:
        config = published_config(folder, CONFIGS[name][0], name)
        if name != "emu3.5":  # transformers' own models have the same layers, and other words
            text = (folder / "tokenizer.json").read_text(encoding="utf-8", errors="replace")
            refuse_lacking(
                folder / "tokenizer.json", {w: 0 for w in GRIDS[name].needed if w in text}, GRIDS[name].needed
            )
        if name == "lumina2" and int(config.get("vocab_size", 0)) <= VOCAB:
            raise ValueError("these are weights of Lumina-mGPT 1: mmspec convert lumina")
        return {"config": config}

    return beside


def grid_words(name: str) -> Callable[[Mapping[str, Path]], dict[str, Any]]:
    """From the folders of the parts to the pipeline's tokenizer."""

    def beside(folders: Mapping[str, Path]) -> dict[str, Any]:
        folder = folders["model"]
        if name == "emu3.5":
            words = emu3_tokenizer(folder)
            refuse_lacking(folder, words.get_vocab(), GRIDS[name].needed)
            return {"processor": words}
        found = read_words(folder / "tokenizer.json", GRIDS[name].needed)
        said = read_json(folder / "tokenizer_config.json")
        special = {key: _word(said[key]) for key in ("bos_token", "eos_token", "pad_token") if said.get(key)}
        if name == "lumina2":  # a prompt begins with the begin of a text, or, where there is none, with its end
            return {"processor": fast_tokenizer(found, {"bos_token": special.get("eos_token", "")} | special)}
        return {"processor": PreTrainedTokenizerFast(tokenizer_object=found, **special)}

    return beside


def _word(said: Any) -> str:
    """A word of a `tokenizer_config.json`, which has it as a text or as an object."""
    return str(said["content"] if isinstance(said, dict) else said)


def grid_pipeline(name: str, model: PreTrainedModel, processor: Any, vq: VQModel | None = None) -> GridLanguagePipeline:
    """The pipeline of the model `name`."""
    grid, words = GRIDS[name], processor.get_vocab()
    named = sorted(number for word, number in words.items() if word.startswith(str(grid.codes)))
    first = grid.first if grid.first is not None else named[0] if named else len(processor)
    codes = grid.codes if isinstance(grid.codes, int) else len(named)
    if first + codes > model.config.vocab_size:
        raise ValueError(f"{codes} codes from the id {first} on do not fit a model of {model.config.vocab_size} ids")
    model.config.grid_language = {"name": name, "first": first, "codes": codes}
    model.generation_config.eos_token_id = None  # a picture ends where its grid does
    return GridLanguagePipeline(model, processor, vq)
