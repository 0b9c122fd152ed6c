"""Pictures of small models: adaptive negatives (arXiv 2510.10715), and drafts for MAR (2411.11925)."""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

import mmspec
from mmspec.kits.pictures.prompts import tokens_of, words_of
from mmspec.shipped import asset
from mmspec_continuous.models.mar import MAR
from mmspec_continuous.models.mar_drafts import DraftedOptions, RowNoise, draw_drafted
from mmspec_continuous.pipeline import pictures_of
from tools.bench.pictures.quality import Quality, load_quality
from tools.train.pictures.data import load
from tools.train.pictures.mar import MODEL, MARRecipe, train_mar

EMOJI = "mmspec/emoji"
KINDS = ("face", "cat", "heart", "hand", "woman", "clock", "button", "flag")
"""What is drawn, in a word: each has members of many sorts among the training pictures."""
EACH, GUIDANCE, LOOKS = 16, 4.0, 8
"""Pictures of a kind; and how often the judge looks at each while it is drawn."""


class Likened:
    """A judge that names the known word, none that is left out, whose features are most like a picture's."""

    def __init__(self, quality: Quality, tokenizer: Any, length: int, left_out: str) -> None:
        self._quality = quality
        self._words = [word for word in words_of(tokenizer) if len(word) > 2 and word.isalpha() and word != left_out]
        self._like = worded(quality, tokenizer, length, self._words)

    def __call__(self, picture: Image.Image) -> str:
        return self._words[int((self.cosines(seen(picture)[None])).argmax())]

    def cosines(self, pictures: Tensor) -> Tensor:
        """`[picture, word]` of pictures `[n, 3, height, width]` in [-1, 1]."""
        return F.normalize(self._quality.of(pictures), dim=-1) @ self._like.T


def seen(picture: Image.Image) -> Tensor:
    """Pixels `[3, height, width]` in [-1, 1]."""
    return torch.from_numpy(np.array(picture.convert("RGB"))).permute(2, 0, 1).float() / 127.5 - 1


@torch.no_grad()
def worded(quality: Quality, tokenizer: Any, length: int, words: list[str]) -> Tensor:
    """Features of words, of length 1: `[word, width]`."""
    return F.normalize(quality.features.captions(*tokens_of(words, tokenizer, length)).float(), dim=-1)


def vendi(features: Tensor) -> float:
    """How many different pictures there are, as it were: the exponential of the entropy of the eigenvalues of their
    cosines (Friedman & Dieng, arXiv 2210.02410), of features `[n, width]` of length 1.
    """
    values = torch.linalg.eigvalsh(features @ features.T / len(features)).clamp(min=1e-12)
    return float(torch.exp(-(values * values.log()).sum()))


@torch.no_grad()
def negatives() -> Iterator[tuple[str, Mapping[str, float]]]:
    """The shipped picture model without a judge, and with one: the shipped network that judges pictures by captions.

    `valid`: the share of pictures that are more like their own kind than like the other ones. `own`: the cosine with
    their kind; `usual`: with the likest other word, as the judge names it; `typical`: the former less the latter.
    """
    pipe = mmspec.Pipeline.from_pretrained(EMOJI)
    pipe.set_progress_bar_config(disable=True)
    quality, tokenizer = load_quality(asset("emoji")), pipe.tokenizer
    length, cells = pipe.transformer.config.cls_token_num, pipe.transformer.cells
    kinds = worded(quality, tokenizer, length, list(KINDS))
    for name, most in (("no judge", 0), ("its latest word", 1), ("all of its words", None)):
        found = {key: list[Tensor]() for key in ("valid", "own", "usual", "typical")}
        spread, named = {"vendi": 0.0, "variance": 0.0}, 0
        for number, kind in enumerate(KINDS):
            judge = Likened(quality, tokenizer, length, kind)
            away = mmspec.AdaptiveNegative(judge, most=most or None)
            how: dict[str, Any] = {"guidance_scale": GUIDANCE, "seed": list(range(EACH)), "output_type": "pt"}
            if most != 0:
                how |= {"callback_on_step_end": away, "steer_every": cells // LOOKS}
            drawn = 2 * pipe([kind] * EACH, **how).images - 1
            named += len({(row, words) for _, row, words in away.said})
            features = F.normalize(quality.of(drawn), dim=-1)
            own, usual = features @ kinds[number], judge.cosines(drawn).amax(-1)
            found["valid"].append(((features @ kinds.T).argmax(-1) == number).float())
            for key, values in (("own", own), ("usual", usual), ("typical", own - usual)):
                found[key].append(values)
            spread["vendi"] += vendi(features) / len(KINDS)
            spread["variance"] += float(features.var(0).sum()) / len(KINDS)
        figures = {key: float(torch.cat(values).mean()) for key, values in found.items()} | spread
        yield name, {"words a picture": named / EACH / len(KINDS), **figures}


CAPTIONS, WINDOW = 24, 16
"""Held-out captions, each for one picture; codes of a window."""


@torch.no_grad()
def heads() -> Iterator[tuple[str, Mapping[str, float]]]:
    """The shipped picture model with windows and with its head, exactly and under LANTERN's rule with each residual.

    `length`: codes a pass. `score`: the mean cosine of pictures and captions; `frechet`: the distance to the training
    pictures; `excess`: the acceptance above an exact rule's, per decided draft.
    """
    pipe, quality = mmspec.Pipeline.from_pretrained(EMOJI), load_quality(asset("emoji"))
    pipe.set_progress_bar_config(disable=True)
    prompts = [kind if number % 3 else f"{kind} face" for number, kind in enumerate(KINDS * (CAPTIONS // len(KINDS)))]
    words = tokens_of(prompts, pipe.tokenizer, pipe.transformer.config.cls_token_num)
    lantern: dict[str, Any] = {"method": "lantern", "drafter": "mmspec/emoji-eagle", "k": 5}
    ways: dict[str, dict[str, Any]] = {
        "plain": {"method": "plain"},
        "gs-sjd": {"method": "gs-sjd", "k": WINDOW},
        "eagle": {"method": "eagle", "drafter": "mmspec/emoji-eagle", "k": 5},
        "lantern, windows": {"method": "lantern", "k": WINDOW},
        "lantern, the head": lantern,
        "lantern, the head, the paper's residual": {**lantern, "residual": "paper"},
        "lantern, the head, the released residual": {**lantern, "residual": "released"},
    }
    for name, how in ways.items():
        drawn = pipe.use(**how)(prompts, guidance_scale=GUIDANCE, seed=list(range(len(prompts))), output_type="pt")
        shown, bias = 2 * drawn.images - 1, drawn.report.bias
        figures = {"length": drawn.report.acceptance_length, "score": quality.caption_score(shown, *words)}
        figures |= {"frechet": quality.distance(shown)}
        yield name, figures | ({} if bias is None else {"excess": bias.excess_acceptance})


SMALL = {"dim": 64, "depth": 1, "num_heads": 2, "head_width": 96}
"""Sizes of the MAR that drafts, where they are not the usual ones."""
PICTURES, SETS, SCALE, HEAT = 64, 32, 2.0, 1.0


def drafted_sets(
    data: Path, work: Path, steps: int, say: Callable[[str], None]
) -> Iterator[tuple[str, Mapping[str, float]]]:
    """A pair of small MARs: plain, with the released numbers, with the paper's, and plain with as many passes.

    `frechet` is the distance to the training pictures; `kept` the share of drafts that are kept; `at most` how many
    times as fast as plain decoding with as many sets a call can be, where passes cost what weights they have.
    """
    pictures = load(data)
    large, small = (
        train_mar(pictures, replace(MARRecipe(**sizes), steps=steps), work / name, say)
        for name, sizes in (("mar-large", {}), ("mar-small", SMALL))
    )
    vae, quality = mmspec.Pipeline.from_pretrained(MODEL, method="plain").vae, load_quality(asset("emoji-continuous"))
    labels = torch.arange(PICTURES) % large.config.num_classes
    ways: dict[str, tuple[MAR, int, DraftedOptions | None]] = {
        "plain": (large, SETS, None),
        "the small one": (small, SETS, None),
    }
    ways["cspd"] = (large, SETS, DraftedOptions())
    ways["cspd, tau 1"] = (large, SETS, DraftedOptions(tau="paper", factor="paper"))
    for name, (model, sets, options) in ways.items():
        figures = made(model, small, labels, sets, options, vae, quality)
        yield name, figures
    passes = round(made(large, small, labels, SETS, DraftedOptions(), vae, quality)["passes"])
    yield "plain, as many passes", made(large, small, labels, passes, None, vae, quality)


@torch.no_grad()
def made(
    model: MAR, small: MAR, labels: Tensor, sets: int, options: DraftedOptions | None, vae: Any, quality: Quality
) -> dict[str, float]:
    """What is counted of pictures of some classes."""
    noise = RowNoise([torch.Generator().manual_seed(seed) for seed in range(len(labels))])
    orders = torch.stack([torch.randperm(model.cells, generator=source) for source in noise.sources])
    how: dict[str, Any] = {"sets": sets, "guidance": SCALE, "temperature": HEAT, "denoising_steps": 100}
    told = list[Tensor | None]()

    def drawn(places: Tensor, kept: Tensor | None = None) -> bool:
        told.append(kept)
        return True

    if options is None:
        tokens = model.draw(labels, orders, lambda n: noise.normal(n, model.config.token_dim), drawn=drawn, **how)
    else:
        tokens = draw_drafted(model, small, labels, orders, noise, options, drawn=drawn, **how)
    judged = [kept.float().flatten() for kept in told if kept is not None]
    figures = {"passes": float(len(told)), "frechet": quality.distance(pictures_of(vae, tokens))}
    if options is None or not judged:
        return figures
    weights = [sum(p.numel() for p in each.parameters()) for each in (small, model)]
    gain = times_as_fast(sets, options, weights[0] / weights[1])
    return figures | {"kept": float(torch.cat(judged).mean()), "at most": gain}


def times_as_fast(sets: int, options: DraftedOptions, small: float) -> float:
    """The most that drafts can gain: plain decoding's time over a call's, both with as many sets, where a pass of the
    small model, its head included, costs that share of the large one's, and any number of drafts is judged in the time
    of one set.
    """
    first = min(sets, math.floor(sets * options.prefill) + 1)
    judging = sum(step % options.k == 0 or step == sets - 1 for step in range(first, sets))
    return sets / (first + judging + small * (sets - first))
