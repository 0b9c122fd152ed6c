"""Text drafters, where the kit's toys do not do: tiny models with random weights."""

import copy
from functools import cache
from typing import Any

import torch

from mmspec.testing import Example
from mmspec_text.drafters.candidates import CandidatesOptions
from mmspec_text.drafters.cascade import CascadeOptions
from mmspec_text.drafters.draft_model import DraftModelOptions, DraftTreeOptions
from mmspec_text.drafters.llmcad import LLMCadOptions
from mmspec_text.drafters.pard import PardOptions
from mmspec_text.drafters.ppd import Prompts
from mmspec_text.drafters.ppd_model import PPDModelOptions
from mmspec_text.drafters.retrieval.rasd import RasdOptions
from mmspec_text.drafters.retrieval.rest import RestOptions
from mmspec_text.drafters.sequoia import SequoiaOptions
from mmspec_text.drafters.suffix import SuffixOptions
from mmspec_text.drafters.united import UnitedOptions
from tests.support.random_models import small


def recycling() -> Example:
    """Token recycling, and what contains it, remembers across rows and calls."""
    return Example(learns=True)


def suffix() -> list[Example]:
    """Rows of one prompt draft from each other's text, or every row from its own."""
    return [Example(learns=True), Example(options=SuffixOptions(siblings=False))]


def grammar() -> Example:
    """As `suffix`."""
    return Example(learns=True)


def candidates() -> list[Example]:
    """Two of transformers' generators; one row at a time."""
    return [
        Example(rows=1),
        Example(options=CandidatesOptions(kind="assistant", model=small()), rows=1),
    ]


def draft_model() -> Example:
    """A chain."""
    return Example(options=DraftModelOptions(model=small()))


MASK = 6


@cache
def masked() -> Any:
    """The small model, with a token for units that are not known."""
    model = copy.deepcopy(small())
    model.config.pard_token = MASK
    return model


def pard() -> list[Example]:
    """A chain and a tree."""
    return [
        Example(options=PardOptions(model=masked())),
        Example(options=PardOptions(model=masked(), form="rerank", width=3, nodes=8)),
    ]


def ppd_model() -> Example:
    """Random prompt tokens of the small model."""
    width = small().get_input_embeddings().weight.shape[1]
    drawn = torch.randn(3, width, generator=torch.Generator().manual_seed(0), device="cpu") * 0.02
    prompts, rates = Prompts("random", drawn), ((0.5, 0.3),)
    return Example(options=PPDModelOptions(model=small(), prompts=prompts, budget=12, rates=rates))


def draft_tree() -> list[Example]:
    """Every shape of tree."""
    return [
        Example(options=DraftTreeOptions(model=small(), form="rerank", width=3, nodes=8)),
        Example(options=DraftTreeOptions(model=small(), form="greedy", width=3, nodes=8)),
        Example(options=DraftTreeOptions(model=small(), form="heap", width=3, nodes=8)),
        Example(options=DraftTreeOptions(model=small(), form="branching", branching=(2, 2, 1))),
        Example(options=DraftTreeOptions(model=small(), form="beam", width=3)),
    ]


def llmcad() -> Example:
    """Trees that end early and late."""
    return Example(options=LLMCadOptions(model=small(), nodes=8, threshold=0.1))


def sequoia() -> Example:
    """Of a fixed size; a measured one would make drafts depend on the speed of the machine."""
    return Example(options=SequoiaOptions(model=small(), nodes=7), learns=True)


def cascade() -> list[Example]:
    """A middle level that sees all of the text, as in a short call, and one that does not; both drafters inside."""
    return [
        Example(options=CascadeOptions(), learns=True),
        Example(options=CascadeOptions(budget=16, sinks=2, inner="prompt-lookup")),
        Example(options=CascadeOptions(cache="retrieval", budget=16, chunk=4, renew=2), learns=True),
    ]


TEXTS = tuple(tuple((start * step + 1) % 3 for start in range(40)) for step in (1, 2, 5, 7))
"""Texts of the three ids that every toy has."""


def rest() -> list[Example]:
    """A datastore that has every suffix."""
    return [Example(options=RestOptions(corpus=_texts(), nodes=8))]


def rasd() -> Example:
    """The same datastore beside a small model."""
    return Example(options=RasdOptions(corpus=_texts(), model=small(), width=3, nodes=6, retrieved=4))


def union() -> list[Example]:
    """Copies beside a tree and beside a chain."""
    return [
        Example(options=UnitedOptions(model=small(), first="draft-tree", beside="prompt-lookup", nodes=8)),
        Example(options=UnitedOptions(model=small(), depth=2), learns=True),
    ]


def _texts() -> list[list[int]]:
    return [list(text) for text in TEXTS]


EXAMPLES = {
    "text:token-recycling": recycling,
    "text:lookup-recycling": recycling,
    "text:suffix": suffix,
    "text:grammar": grammar,
    "text:candidates": candidates,
    "text:draft-model": draft_model,
    "text:pard": pard,
    "text:ppd-model": ppd_model,
    "text:draft-tree": draft_tree,
    "text:llmcad": llmcad,
    "text:sequoia": sequoia,
    "text:cascade": cascade,
    "text:rest": rest,
    "text:rasd": rasd,
    "text:united": union,
}
