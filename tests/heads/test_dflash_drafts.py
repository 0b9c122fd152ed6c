"""DFlash heads: their forward written out, how deep they draft, and confidence heads that end drafts."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

from mmspec.api.build import decoder_for
from mmspec.core.decoder import Decoder
from mmspec.core.rules import Block, Match, Rejection, Rule
from mmspec.core.warp import Warp
from mmspec.hosts.target import TransformersTarget
from mmspec.testing.statistics import LEVEL
from mmspec.testing.tiny_models import llama
from mmspec_text.drafters.dflash import DFlash, DFlashOptions, dflash_features
from mmspec_text.drafters.heads.dflash.checkpoint import DFlashCheckpoint
from mmspec_text.drafters.heads.dflash.family import Sight
from mmspec_text.drafters.heads.trial import BLOCKS, try_head
from tests.heads.conftest import GREEDY, KEPT, MAPS, SAMPLED
from tests.support.dflash_forward import BlockFlags, BlockWrittenOut, everything
from tests.support.dflash_layouts import near_causal, near_root
from tests.support.draft_rounds import played
from tests.support.examples.heads import PRODUCT, random_dflash

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


@pytest.mark.parametrize(("name", "units"), [("product", 4), ("markov", 5)])
def test_no_draft_is_deeper_than_the_block(name: str, units: int, rows: dict[str, Tensor]) -> None:
    ours = decoder(name, Rejection(), k=9, form="chain")
    recorded, _ = played(ours, rows, SAMPLED, rounds=2)
    assert ours.drafter.width(9) == units and all(draft.units.shape[1] == units for _, _, draft in recorded)


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


def test_the_authors_choice_of_layers() -> None:
    """Where a config names none: from the second layer to the last but three, the outputs of."""
    head = random_dflash(layer_ids=())
    assert dflash_features(head, 28).boundaries == (2, 26)
    five = replace(head, architecture=replace(PRODUCT, features=5))
    assert dflash_features(five, 36).boundaries == (2, 10, 18, 26, 34)
    one = replace(head, architecture=replace(PRODUCT, features=1))
    assert dflash_features(one, 28).boundaries == (15,)


def test_a_trial_counts_first_units() -> None:
    """The share of roots behind which the block's first unit is the target's, by the forward written out."""
    target = TransformersTarget(llama())
    ids = torch.randint(7, (24,), generator=torch.Generator().manual_seed(1))
    for name in ("product", "markov"):
        network = HEADS[name].network(7)
        network.join(target.model.model.embed_tokens, target.model.lm_head, ids.device, torch.float32)
        trial = try_head(network, target, dflash_features(HEADS[name], 2), ids)
        with torch.no_grad():
            theirs = target.model(input_ids=ids[None]).logits[0].argmax(-1)
        roots = torch.linspace(1, 23, BLOCKS).long().tolist()
        right = [int(expected(name, ids[: root + 1], [])[0].argmax()) == int(theirs[root]) for root in roots]
        assert trial.units == BLOCKS and trial.right == {"output": pytest.approx(sum(right) / BLOCKS)}


def test_a_block_of_sixteen_at_an_acceptance_of_87_percent() -> None:
    """Expected are (1 - 0.87¹⁶) / 0.13 = 6.86; five units of it, which were once drafted, would give 4.36."""
    head = random_dflash(replace(PRODUCT, block=16))
    options = {"model": head, "probe": False, "form": "chain", "rate": 0.87}
    decoder = decoder_for(llama(), "dflash", rule="synthetic", options=options)
    rows = torch.arange(48).remainder(7).reshape(16, 3)
    report = decoder.generate(rows, 160, seed=5, warp=Warp.sampling()).report
    print(f"DFlash, block 16, acceptance 0.87: {report.acceptance_length:.2f} tokens a pass")
    assert (decoder.k, decoder.k_from) == (15, "its head") and 6.5 <= report.acceptance_length < 7.2


def test_guesses_of_heads_without_a_confidence_head() -> None:
    with pytest.raises(ValueError, match=r"sure=0.5 asks a confidence head, and 'random' has none"):
        DFlash(DFlashOptions(model=random_dflash(), form="chain", sure=0.5))
    with pytest.raises(ValueError, match="form=rerank drafts a tree; say form=chain"):
        DFlashOptions(sure=0.5)
