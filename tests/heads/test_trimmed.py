"""Heads and multi-token layers whose output layer keeps the rows of frequent ids (`keep`, `corpus`)."""

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from mmspec.api.build import decoder_for
from mmspec.core.compile.pool import NAME
from mmspec.core.decoder import Decoder
from mmspec.core.rules import Match, Rejection
from mmspec.hosts.target import TransformersTarget
from mmspec.testing.tiny_models import llama
from mmspec_text.drafters.dflash import DFlash, DFlashOptions
from mmspec_text.drafters.eagle import Eagle, EagleOptions
from mmspec_text.drafters.heads.vocabulary import Trimmed
from mmspec_text.drafters.mtp import Mtp
from tests.captured.conftest import _traced_alone, lockstep, rounds_of  # noqa: F401  a fixture
from tests.heads.conftest import GREEDY, SAMPLED, checkpoint
from tests.support.examples import EXAMPLES
from tests.support.examples.heads import PRODUCT, random_dflash

CORPUS = [1, 1, 1, 3, 3, 5, 5, 2, 6]
"""The special ids are 0 and 1; of the others 3 and 5 are the most frequent."""
CHAIN = {"form": "chain"}
FORMS: tuple[dict[str, Any], ...] = (CHAIN, {"form": "rerank", "width": 3, "nodes": 8})


def eagle(name: str = "eagle-3", rule: Any = Match, compile: bool | None = None, **options: Any) -> Decoder:
    drafter = Eagle(EagleOptions(model=checkpoint(name), probe=False, corpus=CORPUS, **{"keep": 4, **options}))
    return Decoder(TransformersTarget(llama()), drafter, rule(), k=3, shape=None, compile=compile)


def dflash(head: Any, **options: Any) -> Decoder:
    drafter = DFlash(DFlashOptions(model=random_dflash(head), probe=False, corpus=CORPUS, **{"keep": 4, **options}))
    return Decoder(TransformersTarget(llama()), drafter, Match(), k=3)


BLOCKS = {
    "dflash": PRODUCT,
    "markov": replace(PRODUCT, sequel="gated", rank=4),
    "domino": replace(PRODUCT, gru=6, inside=5),
    "dflash2": replace(PRODUCT, candidates=3, rank=5),
}


@pytest.mark.parametrize("name", BLOCKS)
def test_blocks_of_kept_ids(name: str, rows: dict[str, Tensor]) -> None:
    """Of kept ids the scores are those of the whole layer, whatever depends on the unit before; texts are plain's."""
    g, scores, choose = torch.Generator().manual_seed(1), [], BLOCKS[name].candidates
    root, states = torch.tensor([[3]]), torch.randn(1, 1, 16, generator=g)
    for keep in (4, 7):
        ours = dflash(BLOCKS[name], keep=keep, **CHAIN)
        output = ours.generate(rows, 30, seed=5, warp=SAMPLED)
        plain = Decoder(TransformersTarget(llama())).generate(rows, 30, seed=5, warp=SAMPLED)
        assert all(torch.equal(a, b) for a, b in zip(output.units, plain.units, strict=True))
        assert output.report.accepted > 0 and not output.report.faults
        network: Any = ours.drafter.network  # type: ignore[attr-defined]
        scored = network.scored(states)
        scored = scored if network.sequel is None else network.sequel(scored, root, states, None)[0]
        scores.append(network.over_target(scored)[0, 0])
    cut, whole = scores
    kept = torch.zeros(7, dtype=torch.bool)
    kept[[0, 1, 3, 5]] = True
    assert torch.all(cut[~kept] == -torch.inf) and int(cut.isfinite().sum()) == (choose or 4)
    both = cut.isfinite() & whole.isfinite()
    torch.testing.assert_close(cut[both], whole[both])


def logits_of(decoder: Decoder, rows: dict[str, Tensor]) -> Tensor:
    """The logits of some states, once a call joined it to its target."""
    decoder.generate(rows, 2, seed=0)
    network: Any = decoder.drafter.network  # type: ignore[attr-defined]
    states = torch.randn(1, 4, network.architecture.hidden, generator=torch.Generator().manual_seed(1))
    found: Tensor = network.logits(states)
    return found


@pytest.mark.parametrize("name", ["eagle-1", "eagle-3", "pruned"])
def test_kept_ids_have_the_scores_of_the_whole_layer(name: str, rows: dict[str, Tensor]) -> None:
    """With the target's output layer, one of the head's own, and one that had a part of the ids before."""
    cut, whole = logits_of(eagle(name, **CHAIN), rows), logits_of(eagle(name, keep=7, **CHAIN), rows)
    kept = torch.zeros(7, dtype=torch.bool)
    kept[[0, 1, 3, 5]] = True
    there = kept & whole[0, 0].isfinite()
    torch.testing.assert_close(cut[..., there], whole[..., there])
    assert torch.all(cut[..., ~there] == -torch.inf)
    assert 0 < int(there.sum()) < int(whole[0, 0].isfinite().sum())


@pytest.mark.parametrize("warp", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("form", FORMS, ids=lambda form: form["form"])
def test_texts_are_plain_decodings(form: dict[str, Any], warp: Any, rows: dict[str, Tensor]) -> None:
    plain = Decoder(TransformersTarget(llama())).generate(rows, 30, seed=5, warp=warp)
    output = eagle(**form).generate(rows, 30, seed=5, warp=warp)
    assert all(torch.equal(a, b) for a, b in zip(output.units, plain.units, strict=True))
    assert output.report.accepted > 0 and not output.report.faults


def mtp(**options: Any) -> Decoder:
    found = EXAMPLES["text:mtp"]()
    example = found[-1] if isinstance(found, list | tuple) else found
    return decoder_for(llama(), "mtp", k=3, options={**vars(example.options), "probe": False, **CHAIN, **options})


def test_multi_token_layers_that_two_decoders_share(rows: dict[str, Tensor]) -> None:
    cut, whole = mtp(keep=4, corpus=CORPUS), mtp()
    plain = Decoder(TransformersTarget(llama())).generate(rows, 30, seed=5, warp=SAMPLED)
    for decoder, most in ((cut, 4), (whole, 7), (cut, 4)):
        assert isinstance(decoder.drafter, Mtp)
        drafted = set[int]()
        for state in decoder.rounds(rows, 30, seed=5, warp=SAMPLED):
            if state.step is not None:
                drafted |= set(state.step.draft.drafted[state.step.draft.valid[:, 1:]].tolist())
        assert (drafted <= {0, 1, 3, 5}) == (most == 4) and drafted
        units = decoder.generate(rows, 30, seed=5, warp=SAMPLED).units
        assert all(torch.equal(a, b) for a, b in zip(units, plain.units, strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("rule", [Match, Rejection])
def test_captured_rounds(rule: Any, rows: dict[str, Tensor]) -> None:
    vars(llama()).pop(NAME, None)
    eager, captured = (eagle("eagle-1", rule, True, **CHAIN) for _ in range(2))
    eager.captures.refused = True
    assert lockstep(eager, captured, rows, 24, seed=3, warp=SAMPLED) > 3
    assert rounds_of(captured)[0].plan.drafts is not None


def test_rows_follow_their_layer() -> None:
    """Trained, they are copied to where they were; cast, they are new."""
    layer = nn.Linear(3, 6)
    layer.load_state_dict({"weight": torch.arange(18.0).view(6, 3), "bias": torch.arange(6.0)})
    trimmed = Trimmed(torch.tensor([1, 4]))
    trimmed.take(layer)
    first, place = trimmed(torch.ones(1, 3)), trimmed.weight.data_ptr()
    assert torch.equal(first, layer(torch.ones(1, 3))[:, [1, 4]])
    with torch.no_grad():
        layer.weight.mul_(2)
    trimmed.take(layer)
    assert torch.equal(trimmed(torch.ones(1, 3)), layer(torch.ones(1, 3))[:, [1, 4]])
    assert trimmed.weight.data_ptr() == place and not torch.equal(trimmed(torch.ones(1, 3)), first)
    trimmed.take(copy.deepcopy(layer).bfloat16())
    assert trimmed.weight.dtype == torch.bfloat16


def test_bad_input() -> None:
    with pytest.raises(ValueError, match="by keep=<number of ids> and corpus="):
        eagle(keep=None)
    with pytest.raises(ValueError, match="packed weights, of which no rows can be kept"):
        Trimmed(torch.tensor([1])).take(nn.Identity())
    with pytest.raises(ValueError, match="made with another tokenizer"):
        Decoder(
            TransformersTarget(llama()), Eagle(EagleOptions(model=checkpoint("eagle-3"), keep=3, corpus=[9])), Match()
        )
    with pytest.raises(ValueError, match="learns with all rows"):
        eagle().drafter.lesson("kl", 2)  # type: ignore[attr-defined]
