"""The scores of a recurrent model at the nodes of a tree: those behind each path, read from the start.

The models are the zoo's with weights near those they are initialised with: their scores are of size 1, so that 1e-5 is
rounding and nothing else.
"""

import dataclasses
from functools import lru_cache
from typing import Any

import pytest
import torch
from torch import Tensor

from mmspec.core.types import Draft
from mmspec.hosts.target import TransformersTarget
from mmspec_ssm.target import RecurrentTarget
from tests.support.zoo import RECURRENT

TWO_LAYERS = ["mamba2", "bamba", "mamba", "falcon_mamba", "jamba", "falcon_h1"]
FAST = ["mamba", "bamba", "falcon_h1"]
ALL = [pytest.param(name, marks=[] if name in FAST else [pytest.mark.slow]) for name in RECURRENT]
PARENTS = (-1, -1, 0, 0, 1, 2, 4)  # of drafted nodes
WITHIN = 1e-5


@lru_cache(maxsize=2)
def target_of(name: str) -> TransformersTarget:
    zoo = RECURRENT[name]
    config = {**zoo.config, **({"num_hidden_layers": 2} if name in TWO_LAYERS else {})}
    recipe = dataclasses.replace(zoo, config=config, gain=min(zoo.gain, 2.0), head=2.0, embedding=1.0)
    return RecurrentTarget(recipe.model())


def ids_of(*shape: int) -> Tensor:
    return torch.randint(3, 120, shape)


def whole(target: TransformersTarget, ids: Tensor) -> Tensor:
    """Scores after a text, read from the start, by unmodified transformers."""
    with torch.no_grad():
        logits: Tensor = target.model(input_ids=ids[None], use_cache=False).logits[0, -1]
    return logits


def begin(target: TransformersTarget, lengths: list[int]) -> tuple[Any, list[Tensor]]:
    """A ragged batch after its prefill, and every row's text."""
    ids = ids_of(len(lengths), max(lengths))
    mask = torch.arange(max(lengths)) >= max(lengths) - torch.tensor(lengths)[:, None]
    started = target.start({"input_ids": ids * mask, "attention_mask": mask.long()}, 400, 8)
    texts = [row[own] for row, own in zip(ids, mask, strict=True)]
    for row, text in enumerate(texts):
        assert float((started.output.logits[row, 0] - whole(target, text)).abs().max()) < WITHIN
    return started.cache, texts


def path(parents: list[int], node: int) -> list[int]:
    return [*(path(parents, parents[node]) if node else []), node]


def round_(target: TransformersTarget, cache: Any, rows: int, parents: Any = PARENTS) -> tuple[Draft, Tensor]:
    """One pass over random units that hang as `parents` say (of drafted nodes, -1 the root)."""
    root, units = ids_of(rows), ids_of(rows, len(parents) if isinstance(parents, tuple) else parents.shape[1])
    draft = Draft.tree(units, parents).rooted(root, torch.full((rows,), 99))
    logits = target.verify(cache, draft).logits
    assert logits is not None
    return draft, logits


def compare(target: TransformersTarget, texts: list[Tensor], draft: Draft, logits: Tensor, nodes: list[int]) -> None:
    for row, text in enumerate(texts):
        parents = draft.index.parent.expand(len(texts), -1)[row].tolist()
        for node in nodes:
            units = draft.units[row, path(parents, node)]
            off = float((logits[row, node] - whole(target, torch.cat([text, units]))).abs().max())
            assert off < WITHIN, f"row {row}, node {node}: {off:.1e}"


def keep(
    target: TransformersTarget, cache: Any, texts: list[Tensor], draft: Draft, kept: list[int | None]
) -> list[Tensor]:
    """Commit the path to one node of every row, or nothing of it; the longer texts."""
    parents = draft.index.parent.expand(len(texts), -1).tolist()
    paths = [[] if node is None else path(parents[row], node) for row, node in enumerate(kept)]
    longest = max(1, *(len(p) for p in paths))
    padded = torch.tensor([p[1:] + [-1] * (longest - max(1, len(p))) for p in paths], dtype=torch.int64)
    target.commit(cache, padded, torch.tensor([len(p) for p in paths]))
    return [torch.cat([text, draft.units[row, paths[row]]]) for row, text in enumerate(texts)]


@pytest.mark.parametrize("name", ALL)
def test_tree_commit_and_50_more(name: str) -> None:
    """A ragged batch: a tree, a commit of other paths in every row, 50 rounds, another tree."""
    torch.manual_seed(3)
    target = target_of(name)
    assert float(whole(target, ids_of(9)).abs().max()) < 20, "scores too large for 1e-5 to mean rounding"
    cache, texts = begin(target, [9, 4, 7])
    draft, logits = round_(target, cache, 3)
    compare(target, texts, draft, logits, [0, 3, 5, 7])
    texts = keep(target, cache, texts, draft, [7, None, 3])
    for step in range(50):
        # Rounds without a draft, ragged trees, static ones; row 1 ends early.
        own = torch.tensor([[-1, 0, 1], [-1, -1, 0], [-1, 0, 0]])
        draft, logits = round_(target, cache, 3, [(), own, PARENTS][step % 3])
        nodes = draft.nodes
        ended = None if step > 30 else step % nodes
        texts = keep(target, cache, texts, draft, [step % nodes, ended, (step + 1) % min(2, nodes)])
    draft, logits = round_(target, cache, 3)
    compare(target, texts, draft, logits, [0, 2, 6])


@pytest.mark.parametrize("name", ALL)
def test_one_token_at_a_time_is_transformers_own(name: str) -> None:
    """20 tokens by transformers over its own cache, by us over ours."""
    torch.manual_seed(4)
    target = target_of(name)
    ids = ids_of(1, 30)
    started = target.start(ids[:, :10], 30, 1)
    stock = target.model(input_ids=ids[:, :10], use_cache=True)
    theirs = getattr(stock, "cache_params", None) or stock.past_key_values
    cached = "cache_params" if hasattr(stock, "cache_params") else "past_key_values"
    for i in range(10, 30):
        positions = {} if cached == "cache_params" else {"position_ids": torch.tensor([[i]])}
        with torch.no_grad():
            expected = target.model(input_ids=ids[:, i : i + 1], use_cache=True, **{cached: theirs}, **positions).logits
        ours = target.verify(started.cache, Draft.alone(ids[:, i])).logits
        assert ours is not None and float((ours - expected).abs().max()) < WITHIN, i
        target.commit(started.cache, torch.zeros(1, 0, dtype=torch.int64), torch.ones(1, dtype=torch.int64))


def test_200_commits_with_empty_rounds() -> None:
    """A pure model, whose state is all that it knows: after 200 commits it still says what the text says."""
    torch.manual_seed(5)
    target = target_of("mamba2")
    cache, texts = begin(target, [5, 3, 8])
    for step in range(200):
        draft, logits = round_(target, cache, 3, () if step % 3 == 1 else (-1, -1, 0))
        texts = keep(target, cache, texts, draft, [step % draft.nodes, None if step % 7 else 0, draft.nodes - 1])
    draft, logits = round_(target, cache, 3)
    compare(target, texts, draft, logits, [0, 4, 7])


def test_a_prompt_longer_than_a_chunk() -> None:
    """Rows end in different chunks of the prefill: padding and other rows' chunks stay out of their states."""
    torch.manual_seed(6)
    target = target_of("bamba")
    cache, texts = begin(target, [150, 20, 70])
    draft, logits = round_(target, cache, 3)
    compare(target, texts, draft, logits, [0, 5, 7])
