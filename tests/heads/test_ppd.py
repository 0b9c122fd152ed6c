"""Prompt tokens: that nodes do not see them, bad input.

The forward to compare with is transformers' own, of one row of embeddings, with the prompt tokens at its end.
"""

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

import mmspec
from mmspec.core.decoder import Decoder
from mmspec.core.rules import Match, Rule
from mmspec.core.step_costs import StepCosts
from mmspec.core.types import Draft
from mmspec.hosts.target import TransformersTarget
from mmspec.testing.tiny_models import llama
from mmspec.testing.toys.markov import MarkovTarget
from mmspec_text.drafters.heads.probes import ProbedTarget, probed, probed_index
from mmspec_text.drafters.heads.prompt_trees import best_trees, divided, most_nodes
from mmspec_text.drafters.ppd import PPD, PPDOptions, Prompts, read_prompts
from mmspec_text.drafters.ppd import RATES as PUBLISHED
from tests.heads.conftest import GREEDY, SAMPLED
from tests.support.draft_rounds import played

EMBEDDINGS = torch.randn(3, 16, generator=torch.Generator().manual_seed(4)) * 0.05
RATES = ((0.5, 0.2, 0.1), (0.6, 0.2), (0.6, 0.2))
SPARSE: dict[str, Any] = {"form": "sparse", "budget": 18, "rates": RATES}
CONFIG = {"peft_type": "PROMPT_TUNING", "num_special_tokens": 3, "virtual_tokens_per_special_token": 1, "num_exits": 1}


def decoder(rule: Rule | None = None, k: int = 3, **options: Any) -> Decoder:
    drafter = PPD(PPDOptions(model=Prompts("random", EMBEDDINGS), **options))
    return Decoder(TransformersTarget(llama()), drafter, rule or Match(), k=k)


def saved(folder: Path, key: str = "prompt_embeddings", width: int = 64, **changed: Any) -> Path:
    """An adapter as the authors' code writes it."""
    folder.mkdir(parents=True, exist_ok=True)
    drawn = torch.randn(3, width, generator=torch.Generator().manual_seed(0)) * 0.02
    save_file({key: drawn}, folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text(json.dumps({**CONFIG, **changed}))
    return folder


@cache
def block(known: tuple[int, ...]) -> Tensor:
    """Log probabilities of the units behind known ones: prompt tokens behind the last unit before the root."""
    model = llama()
    with torch.no_grad():
        embedded = torch.cat([model.model.embed_tokens(torch.tensor(known[:-1])), EMBEDDINGS])
        logits = model(inputs_embeds=embedded[None], use_cache=False).logits[0, -len(EMBEDDINGS) :]
    return logits.double().log_softmax(-1)


def expected(known: Tensor, path: list[int]) -> Tensor:
    return block(tuple(known.tolist()))[: len(path) + 1]


def test_nodes_do_not_see_prompt_tokens(rows: dict[str, Tensor]) -> None:
    """Scores of a tree, with prompt tokens of two sorts and without."""
    plain, found = TransformersTarget(llama()), []
    for target in (plain, *(ProbedTarget(plain, EMBEDDINGS * factor) for factor in (1, 30))):
        started = target.start(rows, 8, 5)
        root = started.output.logits[:, 0].argmax(-1)  # type: ignore[index]
        units = torch.tensor([[1, 2, 3, 4]]).expand(3, -1)
        draft = Draft.tree(units, [-1, -1, 0, 2]).rooted(root, torch.tensor([9, 9, 1]))
        output = target.verify(started.cache, draft)
        assert output.logits is not None
        found.append(output.logits[draft.valid])
    assert torch.allclose(found[0], found[1], atol=1e-4) and torch.allclose(found[0], found[2], atol=1e-4)


@pytest.mark.parametrize("shared", [True, False])
def test_probes_hang_behind_every_node(shared: bool) -> None:
    parents = [-1, 0] if shared else torch.tensor([[-1, 0]])
    draft = Draft.tree(torch.tensor([[5, 6]]), parents, valid=torch.tensor([[True, False]]))
    index = probed_index((-1, 0, 1), 2, torch.device("cpu")) if shared else None
    rooted = draft.rooted(torch.tensor([4]), torch.tensor([9]))
    tree, number, place = probed(rooted, None, 6, 2, index)
    assert tree.index.parent.tolist() == [[-1, 0, 1, 0, 3, 1, 5, 2, 7]]
    assert tree.index.depth.tolist() == [[0, 1, 2, 1, 2, 2, 3, 3, 4]]
    assert tree.valid.tolist() == [[True, True, False, True, True, True, True, False, False]]
    assert (number.tolist(), place.tolist()) == ([[0, 1, 0, 1, 0, 1]], [[0, 1, 2, 3, 4, 5]])


def test_sparse_trees_by_hand() -> None:
    """Two prompt tokens, budget 8. State 1 accepts 0.8. Of 3 candidates state 2 accepts 0.5 + 0.3 + 0.2 = 1.0."""
    rates = ((0.5, 0.3), (0.4,))
    first, second = divided(rates, [3, 3], 8).states
    assert (first.parents, first.ranks, first.prompts) == ((-1, -1), (0, 1), (2, 2, 2))
    # The last accepted one is [0] with 0.5 - 0.2, [1] with 0.3, [0, 0] with 0.2, which loses its second prompt token.
    assert (second.parents, second.ranks, second.prompts) == ((-1, -1, 0), (0, 1, 0), (2, 2, 2, 1))
    # From state 2 to state 1 in 0.2 of the rounds, and back in the next: (0.2 * 0.8 + 1.0) / 1.2.
    assert divided(rates, [3, 3], 8).accepted == pytest.approx(1.16 / 1.2)
    # Of 4 candidates, one prompt token each: state 2 accepts 1.12, and is left by 0.8: (0.8 * 0.8 + 1.12) / 1.8.
    best = best_trees(rates, 2, 8)
    assert best.states[1].prompts == (2, 1, 1, 1, 1) and best.accepted == pytest.approx(1.76 / 1.8)
    assert most_nodes(best) == 1 + 2 + 8


def test_sparse_trees_as_published() -> None:
    """The numbers of the authors' `dynamic_sparse_trees_105` for Vicuna 7B, of 10, 33 and 34 candidates."""
    one, two, three = divided(PUBLISHED, [10, 33, 34], 105).states
    assert one.prompts == (3,) * 11
    paths: list[tuple[int, ...]] = []
    for parent, rank in zip(three.parents, three.ranks, strict=True):
        paths.append((*(paths[parent] if parent >= 0 else ()), rank))
    assert {path for path, count in zip(paths, three.prompts[1:], strict=True) if count == 3} == {(0,), (1,), (0, 0)}
    assert set(three.prompts) == {2, 3}
    assert sum(two.prompts) == 3 + 105 - 33 and sum(three.prompts) == 3 + 105 - 34
    assert [path for path in paths if len(path) == 3] == [*((0, 0, i) for i in range(4)), (0, 1, 0), (0, 1, 1)]


def test_costs_bound_the_budget() -> None:
    """A pass of 16 nodes costs as much as one of 1, one of 64 ten times as much; and sizes that cost nothing."""
    steep = StepCosts({(1, 1): 1.0, (1, 16): 1.0, (1, 64): 10.0})
    assert most_nodes(best_trees(PUBLISHED, 3, 60, steep)) == 16
    assert most_nodes(best_trees(PUBLISHED, 3, 60, StepCosts({(1, 1): 1.0, (1, 64): 1.0}))) == 64


def test_a_sparse_pass_feeds_fewer_nodes_for_as_many_candidates() -> None:
    sparse = PPD(PPDOptions(model=Prompts("random", EMBEDDINGS), **SPARSE))
    candidates = sparse.width(3)
    dense = PPD(PPDOptions(model=Prompts("random", EMBEDDINGS), form="rerank", width=9, nodes=candidates))
    assert dense.width(3) == candidates
    targets: list[Any] = [each.wrap(TransformersTarget(llama())) for each in (sparse, dense)]
    fed = [target.pass_nodes(candidates + 1) for target in targets]
    assert fed == [1 + 3 + 18, (1 + candidates) * 4] and fed[0] < fed[1]


def test_sparse_probes_hang_behind_their_nodes() -> None:
    """Two rows; behind the root, node 1 and node 2 hang 2, 0 and 1 probes, or 1, 2 and none."""
    draft = Draft.tree(torch.tensor([[5, 6]] * 2), [-1, 0], valid=torch.tensor([[True, True], [True, False]]))
    rooted = draft.rooted(torch.tensor([4, 4]), torch.tensor([9, 9]))
    tree, number, place = probed(rooted, torch.tensor([[2, 0, 1], [1, 2, 0]]), 4, 2)
    assert tree.index.parent.tolist() == [[-1, 0, 1, 0, 3, 2, 0], [-1, 0, 1, 0, 1, 4, 0]]
    assert number.tolist() == [[0, 1, 0, 0], [0, 0, 1, 0]]
    assert tree.valid.tolist() == [[True] * 6 + [False], [True, True, False, True, True, True, False]]
    assert place.tolist() == [[0, 1, -1, -1, 2, -1], [0, -1, 1, 2, -1, -1]]


def test_sparse_drafts_of_successive_rounds(rows: dict[str, Tensor]) -> None:
    """Greedy, rows in different states: every node is the unit of its rank at its depth."""
    recorded, accepted = played(decoder(Match(), **SPARSE), rows, GREEDY)
    assert 0 in accepted and max(accepted) > 0, "no round accepted a part, so nothing was tested"
    levels = []
    for known, done, draft in recorded[1:]:
        rooted = draft.rooted(draft.units[:, 0], torch.full((len(known),), 9))
        for row in (row for row in range(len(known)) if not done[row]):
            best = block(tuple(known[row].tolist())).argsort(-1, descending=True)
            nodes = rooted.valid[row].nonzero()[1:, 0]
            depth, rank = rooted.index.depth[row, nodes], rooted.index.rank[row, nodes]
            assert torch.equal(rooted.units[row, nodes], best[depth - 1, rank])
            levels.append(int(depth.max()))
    assert set(levels) == {2, 3}, "the rows were in one state, so nothing was tested"


def test_sparse_drafts_of_a_smaller_budget(rows: dict[str, Tensor]) -> None:
    recorded, accepted = played(decoder(Match(), k=2, **SPARSE), rows, GREEDY)
    levels = {int((draft.index.depth[:, 1:] * draft.valid).max()) for _, _, draft in recorded[1:]}
    assert levels == {2} and max(accepted) == 2


@pytest.mark.filterwarnings("error:drafter PPD failed")
@pytest.mark.compiled
@pytest.mark.parametrize("warp", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_sparse_trees_change_no_text(warp: Any, rows: dict[str, Tensor]) -> None:
    plain = Decoder(TransformersTarget(llama()), None, Match(), k=0).generate(rows, 30, seed=5, warp=warp)
    ours = decoder(Match(), **SPARSE).generate(rows, 30, seed=5, warp=warp)
    assert all(torch.equal(a, b) for a, b in zip(ours.units, plain.units, strict=True))
    assert ours.report.accepted > 0, "nothing was accepted, so nothing was tested"


def test_files(tmp_path: Path) -> None:
    assert read_prompts(str(saved(tmp_path / "a"))).embeddings.shape == (3, 64)
    assert read_prompts(str(saved(tmp_path / "b", "base_model.prompt_embeddings"))).embeddings.shape == (3, 64)
    for number, (changed, said) in enumerate(
        (
            ({"virtual_tokens_per_special_token": 4}, "trained with virtual_tokens_per_special_token = 4; 1 is"),
            ({"use_custom_lm_head": True}, "use_custom_lm_head = True"),
            ({"vt_attention_type": "encoder"}, "vt_attention_type = .encoder."),
            ({"num_special_tokens": 4}, "num_special_tokens is 4, and there are 3 embeddings"),
            ({"num_special_tokens": None}, "no number num_special_tokens"),
        )
    ):
        with pytest.raises(ValueError, match=said):
            read_prompts(str(saved(tmp_path / str(number), **changed)))
    with pytest.raises(ValueError, match=r"no matrix prompt_embeddings: .* Its keys are lora_A"):
        read_prompts(str(saved(tmp_path / "c", "lora_A")))
    (saved(tmp_path / "d") / "adapter_config.json").unlink()
    with pytest.raises(ValueError, match=r"has no adapter_config.json: .* is no adapter"):
        read_prompts(str(tmp_path / "d"))
    (saved(tmp_path / "e") / "adapter_model.safetensors").write_bytes(b"{}")
    with pytest.raises(ValueError, match="cannot be read"):
        read_prompts(str(tmp_path / "e"))
    (saved(tmp_path / "f") / "adapter_model.safetensors").rename(tmp_path / "f" / "adapter_model.bin")
    with pytest.raises(ValueError, match=r"cannot be read: adapter_model.bin in .* it is damaged, cut off, or no"):
        read_prompts(str(tmp_path / "f"))


def test_targets_that_do_not_fit(tmp_path: Path) -> None:
    folder = str(saved(tmp_path, width=24))
    with pytest.raises(ValueError, match="have 24 numbers, and the target's embeddings 16"):
        Decoder(TransformersTarget(llama()), PPD(PPDOptions(model=folder)))
    with pytest.raises(ValueError, match="not for MarkovTarget"):
        Decoder(MarkovTarget(torch.rand(7, 7, 7)), PPD(PPDOptions(model=folder, form="chain")))
    with pytest.raises(ValueError, match="wants 9 siblings, and the target has 7 ids"):
        decoder(width=9)
    with pytest.raises(ValueError, match="the form sparse wants 10 siblings, and the target has 7 ids"):
        decoder(form="sparse")
    with pytest.raises(ValueError, match="rates are chances of siblings, by depth, at most 1 together"):
        PPDOptions(rates=((0.5,), (0.9, 0.2)))
    with pytest.raises(ValueError, match=r"no-such.json"):
        decoder(**SPARSE, step_costs=str(tmp_path / "no-such.json"))
    with pytest.raises(ValueError, match="ppd needs prompt tokens"):
        mmspec.enable(llama(), "ppd")
