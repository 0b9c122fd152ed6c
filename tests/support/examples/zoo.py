"""Methods of the long tail: overlap, masks, self-drafting, other vocabularies and targets, relaxed rules, blanks."""

from collections.abc import Sequence
from functools import cache, partial
from typing import Any

import torch
from pydantic import ByteSize
from tokenizers import Tokenizer, models
from transformers import LlamaConfig, PreTrainedTokenizerFast, XLNetConfig

from mmspec.hosts.fingerprint import identity
from mmspec.hosts.target import TransformersTarget
from mmspec.testing import Example, tiny_models
from mmspec.testing.tiny_models import SIZES, again, llama, prompt
from mmspec_text.drafters.clover import CloverNetwork, CloverOptions
from mmspec_text.drafters.clover_2 import Clover2Network, Clover2Sizes
from mmspec_text.drafters.heads.layers import BlockSizes
from mmspec_zoo.conditioned.ambedkar import AmbedkarOptions
from mmspec_zoo.conditioned.counterfactual import CounterfactualOptions
from mmspec_zoo.conditioned.rapid import RapidOptions
from mmspec_zoo.infill.any_order import Infill
from mmspec_zoo.infill.xlnet import XLNetTarget
from mmspec_zoo.overlap.mirror_sd import MirrorOptions
from mmspec_zoo.overlap.overlapped import AheadOptions
from mmspec_zoo.overlap.saguaro import SaguaroOptions
from mmspec_zoo.relaxed.fly import FlyOptions
from mmspec_zoo.relaxed.judge import JudgeHead, JudgeOptions
from mmspec_zoo.relaxed.lenient import LenientOptions
from mmspec_zoo.relaxed.rollback import RollbackOptions
from mmspec_zoo.relaxed.typical import TypicalOptions
from mmspec_zoo.self_drafting.dynamic_exit import DynamicExitOptions
from mmspec_zoo.self_drafting.layer_skip import LayerSkipOptions
from mmspec_zoo.self_drafting.swift import SwiftOptions
from mmspec_zoo.sorted.s2d import S2DOptions
from mmspec_zoo.specmemo import SpecMemoOptions
from mmspec_zoo.vocabularies.omnidraft import OmniDraftOptions
from mmspec_zoo.vocabularies.vocab_trim import VocabTrimOptions
from tests.support.examples.heads import path_head
from tests.support.random_models import random_model, small


def pearl() -> list[Example]:
    """In this process, as a trial of it: for one outcome, as published, and for others."""
    return [Example(options=AheadOptions(model=small(), executor="serial", branches=branches)) for branches in (1, 3)]


def saguaro() -> Example:
    """In this process, as a trial of it."""
    return Example(options=SaguaroOptions(model=small(), executor="serial"))


def mirror_sd() -> Example:
    """In this process, as a trial of it."""
    return Example(options=MirrorOptions(model=small(), executor="serial"))


def clover_2() -> list[Example]:
    """Two decoder layers."""
    block = BlockSizes(16, 24, 2, 1, 8)
    sizes = Clover2Sizes(3, 16, 16, 7, 7, own_embedding=True, block=block, layers=2)
    return path_head(Clover2Network, sizes, "chain", "rerank")


def clover() -> list[Example]:
    """Four nodes, and a tree of another form."""
    sizes = Clover2Sizes(3, 16, 16, 7, 7, own_embedding=True, block=BlockSizes(16, 24, 2, 1, 8), layers=1)
    return path_head(CloverNetwork, sizes, "clover", "rerank", options=CloverOptions, nodes=4)


@cache
def deeper() -> Any:
    """A Llama of four layers whose inner ones matter less than the others, as they do in trained models."""
    inner = {f"layers.{number}.{part}": 0.3 for number in (1, 2) for part in ("self_attn.o_proj", "mlp.down_proj")}
    return random_model(LlamaConfig(**{**SIZES, "num_hidden_layers": 4}), head=8.0, factors=inner)


def _example(options: Any, **more: Any) -> Example:
    return Example(options=options, target=TransformersTarget(deeper()), prompt=prompt, **more)


def layer_skip() -> Example:
    """Three of four layers."""
    return _example(LayerSkipOptions(exit=3))


def swift() -> Example:
    """A short window, so that sets are searched in short calls, too."""
    return _example(SwiftOptions(window=4, nodes=8), learns=True)


def dynamic_exit() -> Example:
    """Three exits; the rows of a batch share them."""
    return _example(DynamicExitOptions(latest=3), learns=True)


LETTERS = "abcd"
JOINS = (("a", "b"), ("c", "d"), ("ab", "c"))
"""The target's tokens beside the letters."""


def vocab_trim() -> list[Example]:
    """Five ids of seven, of a corpus; and of the target's own output, soon."""
    texts = [[2, 3, 5, 3, 2, 5, 5], [3, 4]]
    return [
        Example(options=VocabTrimOptions(model=small(), keep=5, corpus=texts)),
        Example(options=VocabTrimOptions(model=small(), keep=5, after=20), learns=True),
    ]


def omnidraft() -> Example:
    """A model of letters, for a target that has some pairs and a triple of them, too."""
    options = OmniDraftOptions(model=speller(), tokenizer=letters(JOINS), assistant_tokenizer=letters(), capacity=2)
    return Example(options=options, target=TransformersTarget(llama()), prompt=prompt, again=again, learns=True)


@cache
def letters(joins: tuple[tuple[str, str], ...] = ()) -> Any:
    """A tokenizer of four letters, and of what joining two tokens makes."""
    tokens = [*LETTERS, *("".join(pair) for pair in joins)]
    core = Tokenizer(models.BPE({token: number for number, token in enumerate(tokens)}, list(joins)))
    return PreTrainedTokenizerFast(tokenizer_object=core)


@cache
def speller() -> Any:
    """A random model of the letters alone."""
    return random_model(LlamaConfig(**{**SIZES, "vocab_size": len(LETTERS)}), seed=5, head=8.0)


def ambedkar() -> list[Example]:
    """A condition in front of the prompts, and one behind their first token."""
    return [Example(options=AmbedkarOptions(model=small(), condition=[2, 5, 5, 1], behind=behind)) for behind in (0, 1)]


def rapid() -> list[Example]:
    """The target on a part of the prompt, for itself and for the mixture; and a smaller model."""
    part = {"first": 1, "chunk": 2, "chunks": 1, "end": 3}
    return [
        Example(options=RapidOptions(**part)),
        Example(options=RapidOptions(**part, eta=2.0)),
        Example(options=RapidOptions(**part, model=small(), eta=2.0)),
    ]


def rollback() -> Example:
    """A threshold that some units of a toy are below, and some above."""
    return Example(options=RollbackOptions(threshold=1.0), strict={"threshold": 0.0})


def lenient() -> Example:
    """A draft that counts half."""
    return Example(options=LenientOptions(epsilon=0.5), strict={"epsilon": 1.0})


def counterfactual() -> Example:
    """Choices by what the kit's targets do not say: where no divergence is known, nothing is chosen."""
    return Example(options=CounterfactualOptions(), strict={"above": 1.0})


def typical() -> Example:
    """A bound that some units of a toy are below, and some above."""
    return Example(options=TypicalOptions(epsilon=0.25, delta=0.8), strict={"epsilon": 1.0, "delta": 1e9})


def fly() -> Example:
    """A window that is shorter than the kit's drafts; three units have an entropy of at most ln 3."""
    return Example(options=FlyOptions(entropy=0.1, window=2), strict={"entropy": 1.2})


def judge() -> Example:
    """A layer of random weights that accepts some units of the kit's model, and refuses others."""
    model = llama()
    weight = torch.randn(model.config.hidden_size, generator=torch.Generator().manual_seed(0))
    head = JudgeHead(weight, torch.zeros(1), "the kit's model", identity(model))
    settings = vars(tiny_models.transformers())
    return Example(**{**settings, "options": JudgeOptions(head=head), "strict": {"threshold": 1.0}})


def s2d() -> list[Example]:
    """Each of two sub-models speaks now and then, and drafts end early; and one that never goes on."""
    return [
        Example(options=S2DOptions(model=small(), exits=(1, 2), sure=0.3, stop=0.18)),
        Example(options=S2DOptions(model=small(), exits=(1, 2), sure=0.0)),
    ]


def specmemo() -> list[Example]:
    """Two shapes of trees, within budgets that no batch of the kit needs; where they bind is tested with the method."""
    return [
        Example(options=SpecMemoOptions(model=small(), memory_budget=ByteSize(2**36), width=3, nodes=8)),
        Example(options=SpecMemoOptions(model=small(), memory_budget=ByteSize(2**36), form="branching")),
    ]


VOCAB, BLANKS = 8, 24


@cache
def tiny_xlnet() -> Any:
    """An XLNet of eight ids, `<mask>` among them; what a query sees, and how far away, decides what it scores."""
    sizes = dict(vocab_size=VOCAB, d_model=16, n_layer=2, n_head=2, d_inner=24)
    seen = {"rel_attn.v": 5.0, "rel_attn.o": 5.0, "rel_attn.q": 0.5, "rel_attn.r": 10.0, "mask_emb": 0.05}
    return random_model(XLNetConfig(**sizes), gain=20.0, head=32.0, factors=seen)


def infill_prompt(rows: Sequence[int], blanks: int = BLANKS) -> Infill:
    """Texts with as many blanks, some of which are filled from right to left."""
    texts = [_text(row, blanks) for row in rows]
    orders = [[place for place, token in enumerate(text) if token is None] for text in texts]
    return Infill(texts, [order[::-1] if row % 2 else order for row, order in zip(rows, orders, strict=True)])


def _text(row: int, blanks: int) -> list[int | None]:
    generator = torch.Generator().manual_seed(row % 64)
    known: list[int | None] = [*torch.randint(6, (3 + row % 3,), generator=generator).tolist()]
    half = blanks // 2
    return [known[0], *[None] * half, *known[1:-1], *[None] * (blanks - half), known[-1]]


def xlnet() -> Example:
    """As many blanks as the kit fills in most checks; behind them it sees how a row goes on."""
    return Example(target=XLNetTarget(tiny_xlnet()), prompt=infill_prompt)


def assd() -> Example:
    """Short texts: the kit decodes thousands of rows, and every pass reads all of a text."""
    return Example(target=XLNetTarget(tiny_xlnet()), prompt=partial(infill_prompt, blanks=8))


EXAMPLES = {
    "zoo:pearl": pearl,
    "zoo:saguaro": saguaro,
    "zoo:mirror-sd": mirror_sd,
    "text:clover": clover,
    "text:clover-2": clover_2,
    "zoo:layer-skip": layer_skip,
    "zoo:swift": swift,
    "zoo:del": dynamic_exit,
    "zoo:vocab-trim": vocab_trim,
    "zoo:omnidraft": omnidraft,
    "zoo:ambedkar": ambedkar,
    "zoo:rapid": rapid,
    "zoo:rollback": rollback,
    "zoo:lenient": lenient,
    "zoo:counterfactual": counterfactual,
    "zoo:typical": typical,
    "zoo:fly": fly,
    "zoo:judge": judge,
    "zoo:s2d": s2d,
    "zoo:specmemo": specmemo,
    "zoo:xlnet": xlnet,
    "zoo:assd": assd,
}
