"""Heads of every family with random weights, over the Llama of seven tokens: their drafters, and forwards written out.

`test_drafts.py` and `test_equality.py` run each of them.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mmspec.core.decoder import Decoder
from mmspec.core.rules import Match, Rule
from mmspec.hosts.target import TransformersTarget
from mmspec.testing.tiny_models import llama
from mmspec_text.drafters.dflash import DFlash, DFlashOptions
from mmspec_text.drafters.eagle import Eagle, EagleOptions
from mmspec_text.drafters.falcon import Falcon, FalconOptions
from mmspec_text.drafters.gated_lora import GatedLora, GatedLoraOptions
from mmspec_text.drafters.heads.pathwise.drafter import PathOptions
from mmspec_text.drafters.mtp import Mtp, MtpOptions
from mmspec_text.drafters.p_eagle import PEagle, PEagleOptions
from mmspec_text.drafters.pard import Pard, PardOptions
from mmspec_text.drafters.ppd import PPD, PPDOptions, Prompts
from tests.heads import mtp_heads, test_dflash_drafts, test_falcon, test_gated_lora, test_p_eagle, test_ppd
from tests.heads.conftest import HEADS as EAGLES
from tests.heads.conftest import KEPT, checkpoint, features_of, written_out
from tests.support import dflash_layouts, eagle_layouts, p_eagle_layouts
from tests.support.examples.heads import gated_adapter
from tests.support.examples.text import MASK, masked
from tests.support.path_heads import KINDS, LAYOUTS


@dataclass(frozen=True)
class Family:
    """A head: its drafter, of a folder to write into and of options, and what it must draft.

    `expected` has the log probabilities behind known units and a path, and behind each prefix of the path.
    """

    drafter: Callable[..., Any]
    expected: Callable[[Tensor, list[int]], Tensor]
    fast: str = ""  # which of the tests chain, branching, tree, late and plain are of the fast tier
    branching: tuple[int, ...] = (2, 2, 1)
    nodes: int = 8
    asked: int = 4  # units
    deepest: int | None = None  # units of a draft, however many are asked for
    undrafted: int = 0  # rounds before the first draft
    late: tuple[int, int, int] = (2, 4, 3)  # units where 2, 4 and 3 are asked for
    law: int | None = 3  # tokens whose joint is measured
    least: float = 1.1  # units a round, so that a rule which takes no draft does not pass

    def decoder(self, folder: Path, rule: Rule | None = None, k: int = 4, **options: Any) -> Decoder:
        drafter = self.drafter(folder, **options)
        return Decoder(TransformersTarget(llama()), drafter, rule or Match(), k=k)


def eagle(name: str) -> Family:
    stored = checkpoint(name)

    @cache
    def scored(known: tuple[int, ...], path: tuple[int, ...]) -> Tensor:
        features = features_of(stored, torch.tensor(known[:-1]))
        logits = torch.stack(written_out(stored).draft_logits(features, known[1:], path))
        if name == "pruned":
            logits = torch.full((len(logits), 7), -torch.inf, dtype=logits.dtype).index_copy(1, KEPT, logits)
        return logits.log_softmax(-1)

    def expected(known: Tensor, path: list[int]) -> Tensor:
        return scored(tuple(known.tolist()), tuple(path))

    def drafter(folder: Path, **options: Any) -> Eagle:
        return Eagle(EagleOptions(model=stored, probe=False, **options))

    # The forward written out takes seconds; the slow tier looks at all heads.
    return Family(drafter, expected, "chain tree late plain" if name == "eagle-3" else "plain")


def mtp(name: str) -> Family:
    def drafter(folder: Path, **options: Any) -> Mtp:
        return Mtp(MtpOptions(model=mtp_heads.checkpoint(name), probe=False, **options))

    fast = "chain branching tree late plain" if name == "two" else ""
    return Family(drafter, partial(mtp_heads.expected, name), fast, branching=(2, 1, 1))


@cache
def features(known: tuple[int, ...], normed: bool) -> Tensor:
    """The target's states behind its final norm, by transformers' own record, or before it: `[unit, width]`."""
    before: list[Tensor] = []
    hook = llama().model.norm.register_forward_pre_hook(lambda module, args: before.append(args[0][0]))
    with torch.no_grad():
        out = llama()(input_ids=torch.tensor([known]), output_hidden_states=True, use_cache=False)
    hook.remove()
    last: Tensor = out.hidden_states[-1][0]
    return last if normed else before[0]


def path_head(name: str) -> Family:
    layout = LAYOUTS[name]
    given = layout.given(llama())

    def expected(known: Tensor, path: list[int]) -> Tensor:
        units = known.tolist()
        found = layout.forward(given, features(tuple(units[:-1]), layout.normed), units[1:], path)
        return torch.stack(found).log_softmax(-1)

    def drafter(folder: Path, **options: Any) -> Any:
        return layout.drafter(PathOptions(model=str(layout.save(folder)), probe=False, **options))

    fast = ["chain"] if name in KINDS else []
    fast += ["tree"] if name in ("medusa", "hydra", "mlp-speculator") else []  # those that are quick enough
    fast += ["late"] if name == "mlp-speculator" else []
    fast += ["plain"] if name in KINDS and name != "hydra" else []
    measured = 3 if name in KINDS else None
    return Family(drafter, expected, " ".join(fast), asked=9, deepest=3, late=(2, 3, 3), law=measured, least=1.05)


def dflash(name: str, fast: str) -> Family:
    def drafter(folder: Path, **options: Any) -> DFlash:
        return DFlash(DFlashOptions(model=test_dflash_drafts.HEADS[name], probe=False, **options))

    return Family(drafter, partial(test_dflash_drafts.expected, name), fast)


def falcon(name: str, fast: str) -> Family:
    def drafter(folder: Path, **options: Any) -> Falcon:
        return Falcon(FalconOptions(model=test_falcon.HEADS[name], **options))

    return Family(drafter, test_falcon.expected(name), fast, branching=(2, 1, 2), least=1.05)


def p_eagle(name: str, fast: str) -> Family:
    def drafter(folder: Path, **options: Any) -> PEagle:
        return PEagle(PEagleOptions(model=test_p_eagle.HEADS[name], probe=False, **options))

    return Family(drafter, test_p_eagle.expected(name), fast)


def ppd(folder: Path, **options: Any) -> PPD:
    return PPD(PPDOptions(model=Prompts("random", test_ppd.EMBEDDINGS), **options))


def gated_lora(folder: Path, **options: Any) -> GatedLora:
    return GatedLora(GatedLoraOptions(model=gated_adapter(), **options))


def pard(folder: Path, **options: Any) -> Pard:
    return Pard(PardOptions(model=masked(), **options))


@cache
def filled(known: tuple[int, ...]) -> Tensor:
    """Log probabilities `[unit, vocab]` of four units behind known ones, by a model of masks that has no cache."""
    with torch.no_grad():
        logits = masked()(input_ids=torch.tensor([[*known, *[MASK] * 3]]), use_cache=False).logits
    return logits[0, -4:].double().log_softmax(-1)


ALL = "chain branching tree late plain"
FAMILIES: dict[str, Family] = {
    **{name: eagle(name) for name in EAGLES},
    **{f"mtp-{name}": mtp(name) for name in mtp_heads.HEADS},
    **{name: path_head(name) for name in LAYOUTS},
    "dflash-product": dflash("product", "chain"),
    "dflash-markov": dflash("markov", ALL),
    **{f"dflash-{name}": dflash(name, "") for name in ("recurrent", "pruned", "window")},
    "falcon-two": falcon("two", "chain branching late plain"),
    "falcon-three-deep": falcon("three, deep", ""),
    "p-eagle": p_eagle("whole", ALL),
    "p-eagle-pruned": p_eagle("pruned", ""),
    # Of four tokens: the first round has no draft, and the last token is never drafted.
    "ppd": Family(ppd, test_ppd.expected, ALL, nodes=6, asked=3, undrafted=1, late=(0, 3, 3), law=4),
    "gated-lora": Family(
        gated_lora, test_gated_lora.expected, ALL, nodes=6, asked=3, undrafted=1, late=(0, 3, 3), law=4
    ),
    "pard": Family(pard, lambda known, path: filled(tuple(known.tolist()))[: len(path) + 1], ALL),
}


@dataclass(frozen=True)
class Published:
    """A head in a published file for a model of the zoo: how it is written, its live drafter, how `enable` names it."""

    save: Callable[[Path, Any, str], Path]  # of a folder, the model, and the model's architecture
    live: Callable[..., Any]
    method: str | None = None  # None: the folder alone says it


BOUNDARIES = {"llama": (0, 2, 4), "gemma2": (1, 2, 3), "qwen3_moe": (0, 1, 4), "gpt2": (0, 1, 2), "mistral": (2, 3, 4)}
"""Architectures of several families, and boundaries of their layers."""


def bounded(layout: Any) -> Callable[[Path, Any, str], Path]:
    def save(folder: Path, model: Any, architecture: str) -> Path:
        return layout.save(folder, changed={"eagle_aux_hidden_state_layer_ids": list(BOUNDARIES[architecture])})

    return save


def of_two_layers(layout: Any) -> Callable[[Path, Any, str], Path]:
    ids = {"mask_token_id": dflash_layouts.MASK, "target_layer_ids": [0, 1]}
    return lambda folder, model, name: layout.save(
        folder, changed={"aux_hidden_state_layer_ids": [1, 2], "dflash_config": ids}
    )


def on_a_path(name: str) -> Published:
    def save(folder: Path, model: Any, architecture: str) -> Path:
        ends = (
            ("lm_head.weight", model.get_output_embeddings()),
            ("model.embed_tokens.weight", model.get_input_embeddings()),
        )
        copies = {key: end.weight.detach().clone() for key, end in ends if key in LAYOUTS[name].extra}
        return LAYOUTS[name].save(folder, width(model), model.config.vocab_size, **copies)

    def live(folder: str, **form: Any) -> Any:
        return LAYOUTS[name].drafter(PathOptions(model=folder, probe=False, **form))

    return Published(save, live, name.removesuffix("++"))


def width(model: Any) -> int:
    return model.get_input_embeddings().weight.shape[-1]


def of(drafter: Any, options: Any) -> Callable[..., Any]:
    return lambda folder, **form: drafter(options(model=folder, **form))


PUBLISHED: dict[str, Published] = {
    "eagle-3": Published(bounded(eagle_layouts.LAYOUTS["eagle-3"]), of(Eagle, EagleOptions), "eagle"),
    "p-eagle": Published(bounded(p_eagle_layouts.LAYOUTS["speculators"]), of(PEagle, PEagleOptions), "p-eagle"),
    "falcon": Published(lambda folder, *of: test_falcon.STORED.save(folder), of(Falcon, FalconOptions)),
    "ppd": Published(lambda folder, model, _: test_ppd.saved(folder, width=width(model)), of(PPD, PPDOptions), "ppd"),
    **{
        name: Published(of_two_layers(dflash_layouts.LAYOUTS[name]), of(DFlash, DFlashOptions), "dflash")
        for name in ("dflash", "speculators-dspark")
    },
    **{name: on_a_path(name) for name in KINDS},
}
