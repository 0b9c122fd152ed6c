"""Heads that changed DFlash: Domino, DFlash2, JetSpec. `test_published.py` compares their drafts with the authors'."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from mmspec.core.compile.pool import NAME
from mmspec.core.decoder import Decoder
from mmspec.core.rules import Match, Rejection
from mmspec.hosts.target import TransformersTarget
from mmspec.testing.tiny_models import llama
from mmspec_text.drafters.dflash import DFlash, DFlashOptions
from mmspec_text.drafters.heads.dflash.checkpoint import read_dflash
from mmspec_text.drafters.heads.dflash.family import Sight
from tests.captured.conftest import _traced_alone, lockstep, rounds_of  # noqa: F401  a fixture
from tests.heads.conftest import GREEDY, SAMPLED
from tests.support.dflash_layouts import LAYOUTS
from tests.support.examples.heads import PRODUCT, random_dflash

DOMINO = replace(PRODUCT, gru=6, inside=5, uncorrected=1)
SECOND = replace(PRODUCT, taps=2, groups=4, candidates=4, rank=5, scale=0.8, softcap=20.0)
HEADS = {"domino": DOMINO, "dflash2": SECOND, "jetspec": replace(PRODUCT, sights=(Sight(causal=True),) * 2)}
FORMS: tuple[dict[str, Any], ...] = ({"form": "chain"}, {"form": "rerank", "width": 3, "nodes": 8})


def decoder(rule: Any = Match, head: Any = DOMINO, dtype: torch.dtype | None = None, **options: Any) -> Decoder:
    how = {name: options.pop(name) for name in ("shape", "compile") if name in options}
    drafter = DFlash(DFlashOptions(model=random_dflash(head), probe=False, **options))
    model = llama() if dtype is None else type(llama())(llama().config).to(dtype).eval()
    return Decoder(TransformersTarget(model), drafter, rule(), k=4, **how)


@pytest.mark.parametrize("warp", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("form", FORMS, ids=lambda form: form["form"])
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("head", HEADS)
def test_texts_are_plain_decodings(
    head: str, batch: int, form: dict[str, Any], warp: Any, rows: dict[str, Tensor]
) -> None:
    rows = {name: value[:batch] for name, value in rows.items()}
    plain = Decoder(TransformersTarget(llama())).generate(rows, 30, seed=5, warp=warp)
    output = decoder(head=HEADS[head], **form).generate(rows, 30, seed=5, warp=warp)
    assert all(torch.equal(a, b) for a, b in zip(output.units, plain.units, strict=True))
    assert output.report.accepted > 0 and not output.report.faults


@pytest.mark.parametrize("head", HEADS)
def test_in_half_precision_of_one_shape(head: str, rows: dict[str, Tensor]) -> None:
    torch.manual_seed(0)
    ours = decoder(head=HEADS[head], dtype=torch.bfloat16, shape="one", form="chain")
    plain = Decoder(ours.target, shape=ours.one_width())
    texts = [each.generate(rows, 24, seed=5, warp=SAMPLED) for each in (ours, plain)]
    assert all(torch.equal(a, b) for a, b in zip(texts[0].units, texts[1].units, strict=True))
    assert texts[0].report.drafted > 0 and not texts[0].report.faults


def test_nodes_of_a_tree_are_scored_along_their_own_paths(rows: dict[str, Tensor]) -> None:
    """The chain that a tree's first path is has the same scores; the first unit has no term, the others have one."""
    ours, plain = decoder(form="chain"), decoder(form="chain", head=PRODUCT)
    network: Any = ours.drafter.network  # type: ignore[attr-defined]
    for each in (ours, plain):
        each.generate(rows, 2, seed=0)
    g = torch.Generator().manual_seed(2)
    scored, states = torch.randn(1, 4, 7, generator=g), torch.randn(1, 4, 16, generator=g)
    step = partial(network.sequel, scored[:, :1], states=states[:, :1])
    first, carried = step(units=torch.tensor([[3]]), above=None)
    assert torch.equal(first, scored[:, :1])
    pair, both = network.sequel(scored[:, :2], torch.tensor([[2, 5]]), states[:, :2], carried.expand(1, 2, -1))
    alone, _ = network.sequel(scored[:, 1:2], torch.tensor([[5]]), states[:, 1:2], carried)
    torch.testing.assert_close(pair[:, 1:], alone)
    assert not torch.equal(pair, scored[:, :2]) and both[0, :, -1].tolist() == [2, 2]
    cell = torch.nn.GRUCell(16, 6, bias=False)
    cell.load_state_dict({"weight_ih": network.prefix_gru.weight_ih_l0, "weight_hh": network.prefix_gru.weight_hh_l0})
    embedded = llama().get_input_embeddings()(torch.tensor([3, 5]))
    torch.testing.assert_close(both[0, 1:, :-1], cell(embedded[1:], cell(embedded[:1])))


@pytest.mark.slow
@pytest.mark.parametrize(("rule", "form"), [*((Match, form) for form in FORMS), (Rejection, FORMS[0])])
@pytest.mark.parametrize("head", HEADS)
def test_captured_rounds(head: str, form: dict[str, Any], rule: Any, rows: dict[str, Tensor]) -> None:
    vars(llama()).pop(NAME, None)
    how: dict[str, Any] = {"head": HEADS[head], **form, "shape": None, "compile": True}
    eager, captured = (decoder(rule, **how) for _ in range(2))
    eager.captures.refused = True
    for warp in (SAMPLED, GREEDY):
        assert lockstep(eager, captured, rows, 24, seed=3, warp=warp) > 3
    assert rounds_of(captured)[0].plan.drafts is not None


@pytest.mark.parametrize(
    ("changed", "tensors", "said"),
    [
        ({"projector_type": "domino"}, {}, "prefix_gru.weight_hh_l0"),
        ({}, {"prefix_gru.weight_ih_l0": (12, 64)}, "prefix_gru.weight_hh_l0"),
        (
            {"pure_draft_prefix_len": "two"},
            {"prefix_gru.weight_hh_l0": (12, 4), "embed_proj.0.weight": (5, 68)},
            "pure_draft_prefix_len .* is no number of units: 'two'",
        ),
        ({}, {"layers.0.attention_conv.base_kernel": (2, 2, 64)}, "no number conv_kernel_size"),
        ({"conv_kernel_size": 2, "conv_group_size": 5}, {}, "conv_group_size 5 divides its 64 numbers"),
        ({"conv_kernel_size": 5, "conv_group_size": 8}, {}, "conv_kernel_size 5 is no more than block_size"),
        ({"conv_kernel_size": 2, "conv_group_size": 8}, {}, "attention_conv.base_kernel"),
        ({"selector_rank": 3, "selector_top_k": 4}, {}, "candidate_selector"),
        ({}, {"candidate_selector.successor_codebook": (131, 4)}, "no number selector_top_k"),
        ({"final_logit_softcapping": -1}, {}, "final_logit_softcapping in its config is a number above 0"),
    ],
)
def test_bad_input(changed: dict[str, Any], tensors: dict[str, Any], said: str, tmp_path: Path) -> None:
    more = {key: torch.zeros(shape) for key, shape in tensors.items()}
    with pytest.raises(ValueError, match=said):
        read_dflash(str(LAYOUTS["dflash"].save(tmp_path, changed=changed, **more))).network(131)


def test_a_selector_keeps_enough_for_a_tree() -> None:
    with pytest.raises(ValueError, match="wants 5 siblings, and the head's selector keeps 4"):
        decoder(head=SECOND, form="rerank", width=5, nodes=8)
