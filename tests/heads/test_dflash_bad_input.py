"""DFlash heads that do not fit, files that are no such heads, and what a trial on the prompt reports."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import mmspec
from mmspec.core.decoder import Decoder
from mmspec.core.warp import Warp
from mmspec.hosts.target import TransformersTarget
from mmspec.testing import tiny_models
from mmspec.testing.toys.markov import MarkovTarget
from mmspec_text.drafters.dflash import DFlash, DFlashOptions, dflash_features
from mmspec_text.drafters.heads.dflash.checkpoint import read_dflash
from mmspec_text.drafters.heads.trial import BLOCKS, try_head
from tests.heads.test_dflash_drafts import HEADS, expected
from tests.support import eagle_layouts
from tests.support.dflash_layouts import LAYOUTS, VOCAB
from tests.support.examples.heads import PRODUCT, random_dflash
from tests.text.conftest import llama

ZLAB, SPEC = LAYOUTS["dflash"], LAYOUTS["speculators"]


def refused(folder: Path, match: str, **config: Any) -> None:
    target = TransformersTarget(llama(**{"num_hidden_layers": 6, **config}))
    with pytest.raises(ValueError, match=match):
        Decoder(target, DFlash(DFlashOptions(model=str(folder))))


def inner(**changed: Any) -> dict[str, Any]:
    return {"dflash_config": {**ZLAB.config["dflash_config"], **changed}}


def test_a_head_of_another_target(tmp_path: Path) -> None:
    folder = ZLAB.save(tmp_path / "a")
    refused(folder, "states of 64 numbers, and those of the target have 128", hidden_size=128)
    refused(folder, "made for 131 ids, and the target has 140", vocab_size=140)
    refused(folder, "reads the layers 1, 3 of its target, and this one has 3", num_hidden_layers=3)
    refused(SPEC.save(tmp_path / "b"), "names id 96, and the target has 90", vocab_size=90)
    refused(ZLAB.save(tmp_path / "c", changed=inner(target_layer_ids=[1, 2, 3])), "reads 2 states and names 3 layers")
    refused(ZLAB.save(tmp_path / "d", changed=inner(mask_token_id=151)), "mask token 151, and there are embeddings")
    unsaid = {"aux_hidden_state_layer_ids": None}
    refused(SPEC.save(tmp_path / "e", changed=unsaid), "does not say which of the target's")
    with pytest.raises(ValueError, match="nothing offers hidden"):
        Decoder(MarkovTarget(torch.rand(7, 7, 7)), DFlash(DFlashOptions(model=random_dflash(), form="chain")))


def test_confidence_heads(tmp_path: Path) -> None:
    """A width that no such head has, and who asks for guesses that nobody makes."""
    for number, width in enumerate((60, 65, 80)):
        wrong = LAYOUTS["dspark"].save(tmp_path / str(number), **{"confidence_head.proj.weight": torch.zeros(1, width)})
        with pytest.raises(ValueError, match=rf"confidence_head.proj.weight has the shape \[1, {width}\], and a guess"):
            read_dflash(str(wrong))
    with pytest.raises(ValueError, match=r"confidence_head\.proj\.bias"):
        read_dflash(str(LAYOUTS["dspark"].save(tmp_path / "a", **{"confidence_head.proj.bias": None}))).network(VOCAB)
    with pytest.raises(ValueError, match=r"sure=0.5 asks a confidence head, and 'random' has none"):
        DFlash(DFlashOptions(model=random_dflash(), form="chain", sure=0.5))
    with pytest.raises(ValueError, match="form=rerank drafts a tree; say form=chain"):
        DFlashOptions(sure=0.5)


def test_the_authors_choice_of_layers() -> None:
    """Where a config names none: from the second layer to the last but three, the outputs of."""
    head = random_dflash(layer_ids=())
    assert dflash_features(head, 28).boundaries == (2, 26)
    five = replace(head, architecture=replace(PRODUCT, features=5))
    assert dflash_features(five, 36).boundaries == (2, 10, 18, 26, 34)
    one = replace(head, architecture=replace(PRODUCT, features=1))
    assert dflash_features(one, 28).boundaries == (15,)


def test_files_that_are_no_heads(tmp_path: Path) -> None:
    eagle = eagle_layouts.LAYOUTS["eagle-3"].save(tmp_path / "a")
    with pytest.raises(ValueError, match=r"no layout of a DFlash head; dflash is the nearest, and hidden_norm.weight"):
        read_dflash(str(eagle))
    wrong: list[tuple[Any, dict[str, Any], str]] = [
        (SPEC, {"speculators_model_type": "dflsh"}, r"dflsh.*dflash"),
        (ZLAB, {"block_size": 1}, "block_size in its config is from 2"),
        (ZLAB, {"block_size": None}, "no number block_size"),
        (ZLAB, inner(mask_token_id=None), "no id mask_token_id"),
        (ZLAB, inner(target_layer_ids="all"), "target_layer_ids are numbers"),
        (ZLAB, {"num_attention_heads": 5}, "not 5 equal heads"),
        (ZLAB, {"markov_rank": 5}, r"markov_head.markov_w1.weight is missing"),
        (LAYOUTS["dspark"], {"markov_head_type": "gatet"}, "gated"),
        (
            LAYOUTS["dspark"],
            {"confidence_head_with_markov": False},
            r"guess from a state of 64 numbers takes \[1, 64\]",
        ),
        (ZLAB, {"enable_confidence_head": True}, r"confidence_head.proj.weight is missing"),
        (SPEC, {"draft_vocab_size": 47}, r"draft_vocab_size 47, and lm_head.weight has 48 rows"),
        (LAYOUTS["dflash-windows"], {"sliding_window": None}, "no number sliding_window"),
    ]
    for number, (stored, changed, said) in enumerate(wrong):
        with pytest.raises(ValueError, match=said):
            read_dflash(str(stored.save(tmp_path / str(number), changed=changed)))
    with pytest.raises(ValueError, match="quantised"):
        read_dflash(str(ZLAB.save(tmp_path / "b", **{"fc.weight": torch.zeros(64, 128, dtype=torch.int8)})))
    with pytest.raises(ValueError, match="has no part"):
        read_dflash(str(ZLAB.save(tmp_path / "c", **{"layers.7.mlp.up_proj.weight": torch.zeros(4, 4)})))
    with pytest.raises(ValueError, match="of another shape"):
        wide = torch.zeros(64, 64)
        read_dflash(str(ZLAB.save(tmp_path / "d", **{"layers.0.mlp.up_proj.weight": wide}))).network(VOCAB)
    with pytest.raises(ValueError, match="needs a head"):
        mmspec.enable(llama(num_hidden_layers=6), "dflash")


def test_a_trial_counts_first_units() -> None:
    """The share of roots behind which the block's first unit is the target's, by the forward written out."""
    target = TransformersTarget(tiny_models.llama())
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


def test_a_head_that_guesses_nothing_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr("mmspec_text.drafters.heads.trial.warn", said.append)
    drafter = DFlash(DFlashOptions(model=str(ZLAB.save(tmp_path)), form="chain"))
    ours = Decoder(TransformersTarget(llama(num_hidden_layers=6)), drafter, k=2)
    prompt = torch.randint(3, VOCAB, (1, 40), generator=torch.Generator().manual_seed(2))
    for _ in range(2):
        ours.generate(prompt, 4, warp=Warp.sampling(temperature=0))
    assert len(said) == 1 and "(target_layer_ids)" in said[0] and "chat template" in said[0]
    assert "layout dflash" in str(drafter.loaded) and "guesses of 16 tokens" in str(drafter.loaded)
