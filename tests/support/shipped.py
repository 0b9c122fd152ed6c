"""Promises about the models that we ship, whatever they draw or write."""

from typing import Any

from mmspec import shipped
from mmspec.kits.pictures.prompts import tokens_of
from tools.bench.pictures.quality import load_quality


def assert_small(name: str, most: int) -> None:
    """All files of a model have at most so many bytes, and weights are safetensors."""
    files = [file for file in shipped.asset(name).rglob("*") if file.is_file()]
    assert sum(file.stat().st_size for file in files) <= most
    assert not [file for file in files if file.suffix in {".bin", ".pt", ".ckpt"}], "weights are safetensors"


def assert_shows_what_was_asked_for(pipe: Any, name: str, captions: list[str], guidance: float) -> None:
    """Pictures are nearer to their own captions than to others', by a network that learned both from real pictures."""
    pictures = pipe(captions, guidance_scale=guidance, seed=0, output_type="pt").images * 2 - 1
    quality = load_quality(shipped.asset(name))
    words = tokens_of(captions, pipe.tokenizer, pipe.transformer.config.cls_token_num)
    own = quality.caption_score(pictures, *words)
    others = [quality.caption_score(pictures, *(w.roll(turn, 0) for w in words)) for turn in range(1, len(captions))]
    assert own > max(others) + 0.2


def assert_its_card_names(pipe: Any, name: str, method: str, exactness: str) -> None:
    decoder = pipe.decoder()
    assert decoder.name == method and decoder.rule.exactness == exactness
    assert decoder.why == f"{method}, because the card of {name} names it"
