"""What a DFlash head drafts: the distributions of the forward written out, round after round; and what they are worth.

Under `match` a wrong head is as lossless as a right one. So drafts are compared, in a ragged batch, after rounds that
accepted nothing, a part and all: positions, features, the order of the Markov head's units.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from mmspec.core.decoder import Decoder
from mmspec.core.rules import Block, Match, RecursiveRejection, Rejection, Rule
from mmspec.hosts.target import TransformersTarget
from mmspec.testing.statistics import LEVEL
from mmspec.testing.tiny_models import llama
from mmspec_text.drafters.dflash import DFlash, DFlashOptions
from mmspec_text.drafters.heads.dflash.checkpoint import DFlashCheckpoint
from mmspec_text.drafters.heads.dflash.family import Sight
from tests.heads.conftest import GREEDY, KEPT, MAPS, SAMPLED
from tests.heads.test_eagle_equality import ZOO
from tests.support.dflash_forward import BlockFlags, BlockWrittenOut, everything
from tests.support.dflash_layouts import LAYOUTS, MASK, near_causal, near_root
from tests.support.draft_rounds import ROUNDS, Budgets, assert_distributions, assert_dynamic_tree, played
from tests.support.examples.heads import PRODUCT, random_dflash
from tests.support.head_equality import assert_equal_to_transformers
from tests.support.zoo import build

MARKOV = replace(PRODUCT, sequel="gated", rank=4, from_root=True)
HEADS = {
    "product": random_dflash(),
    "markov": random_dflash(MARKOV),
    "confident": random_dflash(replace(MARKOV, confidence=20)),
    "recurrent": random_dflash(replace(MARKOV, sequel="rnn")),
    "pruned": random_dflash(replace(MARKOV, sequel="vanilla", own_output=True, draft_vocab=5), maps=MAPS),
    "window": random_dflash(replace(PRODUCT, sights=(Sight(3, True), Sight(4, True, True)))),
}

SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in ("recurrent", "pruned", "window")]


def decoder(name: str, rule: Rule | None = None, k: int = 4, **options: Any) -> Decoder:
    drafter = DFlash(DFlashOptions(model=HEADS[name], probe=False, **options))
    return Decoder(TransformersTarget(llama()), drafter, rule or Match(), k=k)


def features_of(ids: Tensor) -> Tensor:
    """The outputs of the target's two layers, of a row by itself: `[unit, width]`."""
    before: list[Tensor] = []
    hook = llama().model.norm.register_forward_pre_hook(lambda module, args: before.append(args[0]))
    with torch.no_grad():
        recorded = llama()(input_ids=ids[None], output_hidden_states=True, use_cache=False).hidden_states
    hook.remove()
    return torch.cat([recorded[1][0], before[0][0]], -1)


def written_out(stored: DFlashCheckpoint) -> BlockWrittenOut:
    a, model = stored.architecture, llama()
    sees = (near_causal(3), near_root(4, causal=True)) if a.sights[0].causal else (everything, everything)
    flags = BlockFlags(a.heads, a.key_heads, a.head_dim, a.block, 3, sees, a.from_root, a.sequel, theta=10000.0)
    weights = {key: value for key, value in stored.weights.items() if key not in MAPS}
    return BlockWrittenOut(weights, flags, model.model.embed_tokens.weight.detach(), model.lm_head.weight.detach())


@cache
def block(name: str, known: tuple[int, ...]) -> list[Tensor]:
    """The states of the block behind known units."""
    return written_out(HEADS[name]).block(list(features_of(torch.tensor(known[:-1]))), known[-1])


def expected(name: str, known: Tensor, path: list[int]) -> Tensor:
    """Log probabilities behind a path of drafted units, and behind each prefix of it: `[len(path) + 1, vocab]`."""
    states = block(name, tuple(known.tolist()))
    logits = torch.stack(written_out(HEADS[name]).behind(states, int(known[-1]), path))
    if name == "pruned":
        logits = torch.full((len(logits), 7), -torch.inf, dtype=logits.dtype).index_copy(1, KEPT, logits)
    return logits.log_softmax(-1)


@pytest.mark.thinned(1)
@pytest.mark.parametrize("name", ["product", "markov", *SLOW])
@pytest.mark.parametrize(
    ("form", "rule"),
    [({"form": "chain"}, Rejection), ({"form": "branching", "branching": (2, 2, 1)}, RecursiveRejection)],
)
def test_distributions_of_successive_rounds(name: str, form: dict[str, Any], rule: type, rows: dict) -> None:
    recorded, accepted = played(decoder(name, rule(), **form), rows, SAMPLED)
    assert len(recorded) == ROUNDS and {0} < set(accepted), "no round accepted a part, so nothing was tested"
    assert_distributions(recorded, partial(expected, name))


@pytest.mark.parametrize("name", ["markov", pytest.param("product", marks=pytest.mark.slow)])
def test_the_dynamic_tree_of_successive_rounds(name: str, rows: dict[str, Tensor]) -> None:
    """Greedy: every node's score is the log probability of its path."""
    recorded, accepted = played(decoder(name, Match(), k=3, form="rerank", width=3, nodes=8), rows, GREEDY)
    assert 0 in accepted and max(accepted) > 0, "no round accepted a part, so nothing was tested"
    assert_dynamic_tree(recorded, partial(expected, name), 8)


def test_rounds_without_a_draft_are_caught_up(rows: dict[str, Tensor]) -> None:
    """A head that was not asked for some rounds reads all of their features before its next draft."""
    ours = decoder("markov", Rejection(), form="chain")
    ours.policy = Budgets()
    recorded, _ = played(ours, rows, SAMPLED, rounds=6)
    assert [draft.units.shape[1] for _, _, draft in recorded] == [2, 4, 3]
    assert_distributions(recorded, partial(expected, "markov"))


@pytest.mark.parametrize(("name", "units"), [("product", 4), ("markov", 5)])
def test_no_draft_is_deeper_than_the_block(name: str, units: int, rows: dict[str, Tensor]) -> None:
    ours = decoder(name, Rejection(), k=9, form="chain")
    recorded, _ = played(ours, rows, SAMPLED, rounds=2)
    assert ours.drafter.width(9) == units and all(draft.units.shape[1] == units for _, _, draft in recorded)


@pytest.mark.thinned
@pytest.mark.compiled
@pytest.mark.parametrize("form", [{"form": "chain"}, {"form": "rerank", "width": 3, "nodes": 10}], ids=str)
@pytest.mark.parametrize("warp", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("name", ["markov", pytest.param("product", marks=pytest.mark.slow), *SLOW])
def test_equal_to_plain(name: str, batch: int, warp: Any, form: dict[str, Any], rows: dict[str, Tensor]) -> None:
    rows = {key: value[:batch] for key, value in rows.items()}
    plain = Decoder(TransformersTarget(llama()), None, Match(), k=0).generate(rows, 30, seed=5, warp=warp)
    ours = decoder(name, Match(), **form).generate(rows, 30, seed=5, warp=warp)
    assert all(torch.equal(a, b) for a, b in zip(ours.units, plain.units, strict=True))
    assert ours.report.drafted > 0 and (batch == 1 or ours.report.accepted > 0), "so nothing was tested"


SURE = {"form": "chain", "sure": 0.5}


@pytest.mark.parametrize("warp", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("batch", [1, 3])
def test_a_confidence_head_changes_no_output(batch: int, warp: Any, rows: dict[str, Tensor]) -> None:
    """It ends drafts row by row, and drafts less."""
    rows = {key: value[:batch] for key, value in rows.items()}
    plain = Decoder(TransformersTarget(llama()), None, Match(), k=0).generate(rows, 30, seed=5, warp=warp)
    whole = decoder("confident", form="chain").generate(rows, 30, seed=5, warp=warp).report
    ours = decoder("confident", **SURE).generate(rows, 30, seed=5, warp=warp)
    assert all(torch.equal(a, b) for a, b in zip(ours.units, plain.units, strict=True))
    assert 0 < ours.report.drafted < whole.drafted and (batch == 1 or ours.report.accepted > 0)


@pytest.mark.slow
@pytest.mark.parametrize("rule", [Rejection, Block])
def test_the_law_where_a_confidence_head_ends_drafts(rule: type, law: Callable) -> None:
    """A guess looks at the units before its own, and so a rule that uses q stays exact."""
    assert law(decoder("confident", rule(), k=2, **SURE), least=1.05) > LEVEL


@pytest.mark.slow
@pytest.mark.parametrize("name", ["product", "markov", "pruned"])
@pytest.mark.parametrize(
    ("rule", "form"),
    [
        (Rejection, {"form": "chain"}),
        (Block, {"form": "chain"}),
        (RecursiveRejection, {"form": "branching", "branching": (2, 2)}),
    ],
)
def test_the_law_of_rules_that_use_q(name: str, rule: type, form: dict[str, Any], law: Callable) -> None:
    assert law(decoder(name, rule(), k=2, **form)) > LEVEL


@pytest.mark.slow
@pytest.mark.compiled
@pytest.mark.parametrize("form", [{"form": "chain"}, {"form": "rerank", "width": 3, "nodes": 10}], ids=str)
@pytest.mark.parametrize("architecture", ZOO)
@pytest.mark.parametrize("layout", ["dflash", "speculators-dspark"])
def test_equal_to_transformers(
    layout: str, architecture: str, form: dict[str, Any], prompts: Callable, tmp_path: Path
) -> None:
    ids = {"aux_hidden_state_layer_ids": [1, 2], "dflash_config": {"mask_token_id": MASK, "target_layer_ids": [0, 1]}}
    folder, model = LAYOUTS[layout].save(tmp_path, changed=ids), build(architecture)
    live = DFlash(DFlashOptions(model=str(folder), **form))
    named = {"method": "dflash", "drafter": str(folder), **form}
    assert_equal_to_transformers(model, prompts, named, {"drafter": live})
