"""`united`: two trees in one by hand and by brute force; copies beside every head and draft model; captured rounds."""

import math
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

import mmspec
from mmspec.compare.equality import assert_same
from mmspec.core.compile.pool import NAME
from mmspec.core.decoder import Decoder
from mmspec.core.types import Draft, Step, Verdict
from mmspec.core.warp import Warp
from mmspec.hosts.loading import load_model, load_tokenizer
from mmspec.hosts.target import TransformersTarget
from mmspec.testing import tiny_models
from mmspec_text.drafters.united import FIRST, Trust, UnitedOptions, UnitedWithModel, united
from tests.captured.conftest import _traced_alone, lockstep, rounds_of  # noqa: F401  a fixture
from tests.support import random_models
from tests.support.examples import EXAMPLES

SURE = torch.zeros(1)
Tree = dict[tuple[int, ...], float]
"""The probability of every path."""


def tree_of(draft: Draft, row: int = 0) -> Tree:
    paths, found = list[tuple[int, ...]](), Tree()
    parents = (draft.index.parent[min(row, len(draft.index.parent) - 1), 1:] - 1).tolist()
    assert draft.score is not None
    for unit, parent, score in zip(draft.units[row].tolist(), parents, draft.score[row].tolist(), strict=True):
        paths.append((*(paths[parent] if parent >= 0 else ()), unit))
        found[paths[-1]] = round(math.exp(score), 4)
    valid = draft.valid[row].tolist()
    kept = [path for path, alive in zip(paths, valid, strict=True) if alive]
    assert len(set(kept)) == len(kept), "siblings are distinct"
    return {path: found[path] for path in kept}


def draft_of(tree: Tree) -> Draft:
    order = sorted(tree, key=len)
    parents = [order.index(path[:-1]) if len(path) > 1 else -1 for path in order]
    scores = torch.tensor([[math.log(tree[path]) for path in order]])
    return Draft.tree(torch.tensor([[path[-1] for path in order]]), parents, score=scores)


MODEL: Tree = {(0,): 0.6, (0, 1): 0.3, (0, 2): 0.2, (3,): 0.3}
COPY: Tree = {(0,): 0.9, (0, 1): 0.8, (0, 1, 4): 0.7, (5,): 0.1, (5, 0): 0.1}


def test_the_union_by_hand() -> None:
    """The better score counts for a path that both have. Of nine nodes, seven are different."""
    model, copied = draft_of(MODEL), draft_of(COPY)
    draft, chance, chosen = united(model, copied, 20, SURE, agreed=False)
    assert tree_of(draft) == {**MODEL, **COPY}
    assert chosen.tolist() == [[0, 1, 2, 3, 5, 7, 8]]  # of the model's and the copy's nodes, level by level
    path = {(0,): 0.9, (0, 1): 8 / 9, (5,): 0.1, (0, 1, 4): 7 / 8, (5, 0): 1}
    assert dict(zip(tree_of(draft), chance[0].tolist(), strict=True)) == pytest.approx(
        {**dict.fromkeys(MODEL, 0), **path}
    )
    best = {(0,): 0.9, (0, 1): 0.8, (0, 1, 4): 0.7, (3,): 0.3}
    assert tree_of(united(model, copied, 4, SURE, agreed=False)[0]) == best
    agreed = {path: share for path, share in COPY.items() if path[0] != 5}
    assert tree_of(united(model, copied, 20, SURE, agreed=True)[0]) == {**MODEL, **agreed}


def test_a_retriever_that_was_wrong_gets_fewer_nodes() -> None:
    half = torch.tensor([math.log(0.5)])
    draft, _, _ = united(draft_of(MODEL), draft_of(COPY), 4, half, agreed=False)
    assert tree_of(draft) == {(0,): 0.6, (0, 1): 0.3, (0, 2): 0.2, (3,): 0.3}


def test_one_alone_and_none() -> None:
    nothing = Draft.empty(torch.zeros(1, dtype=torch.int64))
    for pair in ((draft_of(MODEL), nothing), (nothing, draft_of(MODEL))):
        assert tree_of(united(*pair, 20, SURE, agreed=False)[0]) == MODEL
    assert united(nothing, nothing, 20, SURE, agreed=False)[0].units.shape == (1, 0)
    assert tree_of(united(nothing, draft_of(MODEL), 20, SURE, agreed=True)[0]) == {}


def test_nodes_behind_a_refused_one_are_dropped() -> None:
    """Without a score and with a node that is not valid: what hangs on it must not become a child of the root."""
    chain = Draft.chain(torch.tensor([[0, 1, 4]]), valid=torch.tensor([[True, False, True]]))
    assert tree_of(united(draft_of(MODEL), chain, 20, SURE, agreed=False)[0]) == {**MODEL, (0,): 1.0}


def test_unions_are_those_of_brute_force() -> None:
    random.seed(2)

    def made() -> Tree:
        tree: Tree = {}
        for _ in range(random.randint(1, 9)):
            above = random.choice([(), *tree])
            tree.setdefault((*above, random.randrange(3)), tree.get(above, 1.0) * random.uniform(0.3, 1))
        return tree

    for _ in range(60):
        trees, worth = [made(), made()], random.choice([1.0, 0.6])
        lowered = {path: p * worth ** len(path) for path, p in trees[1].items()}
        whole = {path: max(t.get(path, 0.0) for t in (trees[0], lowered)) for path in {**trees[0], **lowered}}
        most = random.randint(1, 14)
        ours, _, chosen = united(*map(draft_of, trees), most, torch.tensor([math.log(worth)]), agreed=False)
        found = tree_of(ours)
        assert len(found) == min(most, len(whole)) == chosen.shape[1]
        assert found == pytest.approx({path: whole[path] for path in found}, abs=2e-4)
        left = [whole[path] for path in whole if path not in found]
        assert not left or max(left) <= min(found.values()) + 2e-4


def test_what_was_right_is_counted() -> None:
    """Root 9; its children a copy (0.8) that is accepted and the model's; behind it a copy (0.5) that is not."""
    trust = Trust.begin(torch.zeros(1))
    trust.chance = torch.tensor([[0.8, 0.0, 0.5]])
    draft = Draft.tree(torch.tensor([[1, 2, 3]]), [-1, -1, 0]).rooted(torch.tensor([9]), torch.tensor([5]))
    verdict = Verdict(torch.tensor([[1, -1]]), torch.tensor([1]), torch.tensor([7]), draft.units)
    trust.observe(Step(draft, None, verdict, torch.tensor([2])))  # type: ignore[arg-type]
    assert trust.right.tolist() == [1] and trust.promised.tolist() == pytest.approx([1.3])
    assert trust.worth.exp().tolist() == pytest.approx([2 / 2.3])
    verdict = replace(verdict, path=torch.tensor([[2, -1]]))  # now the model is right
    trust.observe(Step(draft, None, verdict, torch.tensor([2])))  # type: ignore[arg-type]
    assert trust.right.tolist() == pytest.approx([0.9]) and trust.promised.tolist() == pytest.approx([1.17 + 0.8])


CALLS = [
    dict(do_sample=False, max_new_tokens=40),
    dict(do_sample=True, max_new_tokens=24, top_k=0, temperature=0.7),
]


@pytest.mark.parametrize("call", CALLS, ids=["greedy", "sampled"])
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("first", ["draft-model", "draft-tree"])
@pytest.mark.parametrize("beside", ["suffix", "prompt-lookup"])
@pytest.mark.compiled("history")
def test_texts_are_those_of_generate(
    target: Any,
    good: Any,
    prompts: Callable,
    theirs: Callable,
    ours: Callable,
    beside: str,
    first: str,
    batch: int,
    call: dict[str, Any],
) -> None:
    drafter = UnitedWithModel(UnitedOptions(model=good, first=first, beside=beside, nodes=16))
    mine = ours(target, prompts(batch), 0, {"drafter": drafter, "k": 8}, **call)
    assert_same(mine.ids, theirs(target, prompts(batch), 0, **call), mine.state)
    assert not mine.report.faults and mine.report.acceptance_length > 1.5 and max(mine.report.sizes) <= 17


def options_for(name: str, beside: str = "prompt-lookup") -> UnitedOptions:
    found = EXAMPLES[f"text:{name}"]()
    given = vars((found[-1] if isinstance(found, list | tuple) else found).options)
    return UnitedOptions(
        model=given["model"],
        first=name,
        beside=beside,  # type: ignore[arg-type]
        nodes=12,
        first_options={key: value for key, value in given.items() if key not in ("model", "form")},
        beside_options={"corpus": [[0, 1, 2, 3, 4, 5, 6] * 4]} if beside == "rest" else {},
    )


HOST = ("falcon", "ppd", "llmcad", "sequoia")
"""Drafters that draft outside of captured rounds, which take their drafts."""


SLOW = [
    # An assistant of Gemma 4 reads that target's keys.
    *((first, "prompt-lookup") for first in FIRST if first not in ("eagle", "gemma4-assistant")),
    *(("eagle", "suffix"), ("draft-tree", "suffix"), ("ppd", "suffix"), ("medusa", "rest"), ("draft-model", "rest")),
]


def decoder_of(options: UnitedOptions) -> Decoder:
    return Decoder(TransformersTarget(tiny_models.llama()), UnitedWithModel(options), k=6, shape=None, compile=True)


@pytest.mark.parametrize(
    "warp",
    [pytest.param(Warp.sampling(temperature=0), marks=pytest.mark.slow), Warp.sampling(0.8)],
    ids=["greedy", "sampled"],
)
@pytest.mark.parametrize(
    ("first", "beside"),
    [
        ("eagle", "prompt-lookup"),
        *(pytest.param(first, beside, marks=pytest.mark.slow) for first, beside in SLOW),
    ],
)
def test_every_pair_is_captured(first: str, beside: str, warp: Warp) -> None:
    """The text is plain decoding's; with a lookup, all of the round is one function."""
    vars(tiny_models.llama()).pop(NAME, None)
    eager, captured = (decoder_of(options_for(first, beside)) for _ in range(2))
    eager.captures.refused = True
    rows = tiny_models.prompt([0, 1, 2])
    assert lockstep(eager, captured, rows, 24, seed=3, warp=warp) > 3
    inside = [found for found in rounds_of(captured) if found.plan.drafts is not None]
    assert bool(inside) == (beside == "prompt-lookup" and first not in HOST)
    plain = Decoder(TransformersTarget(tiny_models.llama())).generate(rows, 24, seed=3, warp=warp)
    texts = captured.generate(rows, 24, seed=3, warp=warp)
    assert all(torch.equal(a, b) for a, b in zip(texts.units, plain.units, strict=True))


CODE = "    def push(self, item):\n        self._items.append(item)\n\n"
REPEATS = f"class Stack:\n{CODE}class Queue:\n{CODE}class Heap:\n"


def length(tokens: Tensor, expected: Tensor | None, method: str, **options: Any) -> tuple[float, Tensor]:
    model = load_model("mmspec/text-14m")
    with mmspec.enable(model, method, **options) as spec:
        ids = model.generate(tokens, max_new_tokens=80, do_sample=False, pad_token_id=0, eos_token_id=None)
    assert expected is None or torch.equal(ids, expected)
    assert not spec.report.faults
    return spec.report.acceptance_length, ids


@pytest.mark.thinned(1)
@pytest.mark.parametrize(("first", "model"), [("draft-tree", "mmspec/text-1m"), ("eagle", "mmspec/text-14m-eagle3")])
@pytest.mark.parametrize("beside", ["suffix", "prompt-lookup"])
def test_on_text_that_repeats_itself_nothing_is_lost(first: str, model: str, beside: str) -> None:
    """In tokens a pass, with as many nodes: at most 3 % less than the better one of both alone, and here more."""
    tokens = load_tokenizer("mmspec/text-14m")(REPEATS, return_tensors="pt").input_ids
    alone, text = length(tokens, None, first, drafter=model)
    copies, _ = length(tokens, text, beside, k=10)
    both, _ = length(tokens, text, "united", drafter=model, first=first, beside=beside, nodes=24)
    print(f"{first} {alone:.2f}, {beside} {copies:.2f}, united {both:.2f}")
    assert both >= 0.97 * max(alone, copies)


def test_rasd_with_a_head() -> None:
    """Copies of the text, or a datastore that has it, lengthen the drafts of a head, which its files tell."""
    tokens = load_tokenizer("mmspec/text-14m")(REPEATS, return_tensors="pt").input_ids
    head = "mmspec/text-14m-eagle3"
    alone, text = length(tokens, None, "eagle", drafter=head, k=5)
    looked_up, _ = length(tokens, text, "rasd", drafter=head, k=10)
    stored, _ = length(tokens, text, "rasd", drafter=head, k=10, corpus=text[0].tolist())
    assert stored >= looked_up >= alone


def test_what_a_model_is_drafted_with() -> None:
    """By its files, for the length that it was trained for."""
    head = UnitedWithModel(UnitedOptions(model="mmspec/text-14m-eagle3"))
    assert type(head.first).__name__ == "Eagle" and type(head.second).__name__ == "Suffix"
    assert (head.levels(10), head.width(10)) == (head.first.own_length or 5, 24)
    small = UnitedWithModel(UnitedOptions(model="mmspec/text-1m", depth=4, nodes=9))
    assert type(small.first).__name__ == "TextDraftModel" and (small.levels(10), small.width(10)) == (4, 9)


def test_what_is_refused() -> None:
    small = random_models.small()
    with pytest.raises(ValueError, match=r"no drafter of a model is called 'eagel'.*eagle"):
        UnitedWithModel(UnitedOptions(model=small, first="eagel"))
    with pytest.raises(ValueError, match="draft-model needs a smaller model"):
        UnitedWithModel(UnitedOptions())
    with pytest.raises(ValueError, match="suffix: no option is called 'max_mach'"):
        UnitedWithModel(UnitedOptions(model=small, beside_options={"max_mach": 3}))
    with pytest.raises(ValueError, match="needs chain, rerank"):
        mmspec.enable(tiny_models.llama(), "united", drafter=small, rule="rejection")
