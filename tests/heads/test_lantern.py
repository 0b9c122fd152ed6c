"""LANTERN's drafters of LlamaGen: their files, drafts of successive rounds under guidance, and plain's pictures."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from mmspec.api.build import decoder_for
from mmspec.core.decoder import Decoder
from mmspec.core.hidden import FINAL
from mmspec.core.rules import Match, RecursiveRejection, Rejection
from mmspec.core.warp import Warp
from mmspec.hosts.target import TransformersTarget
from mmspec.kits.pictures.conditions import Condition
from mmspec.testing.tiny_models import llama
from mmspec_image.drafters.jacobi import ImageJacobi
from mmspec_image.rules.relaxed import Relaxed, RelaxedOptions
from mmspec_image.targets.llamagen import LlamaGenTarget
from mmspec_text.drafters.eagle import Eagle, EagleOptions
from mmspec_text.drafters.heads.eagle.checkpoint import read_checkpoint
from tests.captured.conftest import _traced_alone, lockstep  # noqa: F401  a fixture
from tests.support.draft_rounds import assert_distributions, assert_dynamic_tree, played
from tests.support.lantern_heads import CAPTION, LanternForward, save, target, weights

SCALE = 2.0
FORMS: list[dict[str, Any]] = [{"form": "chain"}, {"form": "rerank", "width": 3, "nodes": 8}]
SAMPLED, GREEDY = Warp.sampling(guidance=SCALE), Warp.sampling(temperature=0, guidance=SCALE)
kinds = pytest.mark.parametrize("kind", [pytest.param("c2i", marks=pytest.mark.slow), "t2i"])
forms = pytest.mark.parametrize("form", FORMS, ids=lambda form: form["form"])


def condition(kind: str, rows: int = 3, guided: bool = True) -> Condition:
    """Another condition a row; captions of several lengths."""
    if kind == "c2i":
        return Condition(torch.arange(rows) % 5, guided=guided)
    features = torch.randn(rows, CAPTION, 6, generator=torch.Generator().manual_seed(3))
    mask = torch.arange(CAPTION) >= torch.arange(rows)[:, None] % 3
    return Condition(features * mask[..., None], mask, guided=guided)


@pytest.fixture
def decoder(tmp_path: Path) -> Callable[..., Decoder]:
    """`decoder(kind, rule, k, compile, **options)`: a decoder with a random head from a folder."""

    def make(kind: str, rule: Any = None, k: int = 4, compile: bool = False, **options: Any) -> Decoder:
        drafter = Eagle(EagleOptions(model=str(save(tmp_path / kind, kind)), **options))
        shape: Any = "one" if compile else None
        return Decoder(LlamaGenTarget(target(kind)), drafter, rule or Match(), k=k, shape=shape, compile=compile)

    return make


def expected(kind: str, row: int, known: Tensor, path: list[int], guided: bool = True) -> Tensor:
    """Log probabilities behind a path of drafted codes, and behind each prefix of it: `[len(path) + 1, vocab]`."""
    head = LanternForward(weights(), 1 if kind == "c2i" else CAPTION)
    output = target(kind).output.weight.double()
    with torch.no_grad():
        halves = [
            torch.stack(head.states(states_of(kind, row, known, null), known.tolist(), path)) @ output.T
            for null in ((False, True) if guided else (False,))
        ]
    logits = halves[1] + SCALE * (halves[0] - halves[1]) if guided else halves[0]
    return logits.log_softmax(-1)


def states_of(kind: str, row: int, known: Tensor, null: bool) -> Tensor:
    """The states of the condition and of all known codes but the last."""
    model, given = target(kind), condition(kind)
    read: list[Tensor] = []
    hook = model.layers[-1].register_forward_hook(lambda module, args, out: read.append(out))
    of = model.cls_embedding.null(3) if null else given.given
    model(of[row : row + 1], known[None], None if given.mask is None else given.mask[row : row + 1])
    hook.remove()
    return model.norm(read[0])[0]


def row_alone(recorded: Any, row: int) -> Any:
    """The rounds, of which the assertions look at one row."""
    return [(known, [done or other != row for other, done in enumerate(dones)], d) for known, dones, d in recorded]


@kinds
@pytest.mark.parametrize(
    ("form", "rule"),
    [
        ({"form": "chain"}, Rejection),
        pytest.param({"form": "branching", "branching": (2, 2, 1)}, RecursiveRejection, marks=pytest.mark.slow),
    ],
)
def test_distributions_of_successive_rounds(kind: str, form: dict[str, Any], rule: type, decoder: Callable) -> None:
    """A ragged batch of different conditions: positions on the grid, fed-back states, both halves."""
    recorded, accepted = played(decoder(kind, rule(), k=3, **form), condition(kind), SAMPLED, rounds=4)
    assert {0} < set(accepted), "no round accepted a part, so nothing was tested"
    for row in range(3):
        assert assert_distributions(row_alone(recorded, row), partial(expected, kind, row))


@pytest.mark.slow
@kinds
def test_the_dynamic_tree_of_successive_rounds(kind: str, decoder: Callable) -> None:
    ours = decoder(kind, k=3, form="rerank", width=3, nodes=8)
    recorded, accepted = played(ours, condition(kind), GREEDY, rounds=3)
    assert max(accepted) > 0
    for row in range(3):
        assert_dynamic_tree(row_alone(recorded, row), partial(expected, kind, row), 8)


def test_without_guidance_there_is_one_half(decoder: Callable) -> None:
    ours = decoder("c2i", Rejection(), k=3, form="chain")
    recorded, _ = played(ours, condition("c2i", guided=False), Warp.sampling(), rounds=3)
    assert assert_distributions(row_alone(recorded, 1), partial(expected, "c2i", 1, guided=False))


@pytest.mark.thinned(1)
@forms
@pytest.mark.parametrize("warp", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
@kinds
def test_pictures_are_those_of_plain_decoding(kind: str, warp: Warp, form: dict[str, Any], decoder: Callable) -> None:
    """Batch 3, and a row of it alone, to the end of the picture."""
    accepted = 0
    for rows in (3, 1):
        given = condition(kind, rows)
        plain = Decoder(LlamaGenTarget(target(kind)), None, Match(), k=0).generate(given, 36, seed=5, warp=warp)
        ours = decoder(kind, **form).generate(given, 36, seed=5, warp=warp)
        assert all(torch.equal(a, b) for a, b in zip(ours.units, plain.units, strict=True))
        accepted += ours.report.accepted
    assert accepted > 0, "nothing was accepted, so nothing was tested"


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS, ids=["chain", "tree"])
def test_captured_rounds_return_the_states_of_both_halves(form: dict[str, Any], decoder: Callable) -> None:
    eager, captured = decoder("t2i", compile=True, **form), decoder("t2i", compile=True, **form)
    eager.captures.refused = True
    assert lockstep(eager, captured, condition("t2i"), 36, seed=5, warp=SAMPLED) > 3
    assert captured.generate(condition("t2i"), 36, seed=5, warp=SAMPLED).report.accepted > 0


def test_lantern_by_name_drafts_with_its_head_where_one_is_given(tmp_path: Path) -> None:
    """The units and the bias of the parts put together by hand; without a head, windows draft."""
    folder, model = str(save(tmp_path, "c2i")), target("c2i")
    relaxed: dict[str, Any] = {"rule.k": 3, "delta": 0.4}
    named = decoder_for(model, "lantern", drafter=folder, k=4, options={**relaxed, "width": 3, "nodes": 8})
    head = Eagle(EagleOptions(model=folder, width=3, nodes=8))
    by_hand = Decoder(LlamaGenTarget(model), head, Relaxed(RelaxedOptions(k=3, delta=0.4)), k=4)
    made, expected = (each.generate(condition("c2i"), 36, seed=5, warp=SAMPLED) for each in (named, by_hand))
    assert all(torch.equal(a, b) for a, b in zip(made.units, expected.units, strict=True))
    assert made.report.method == "lantern" and made.report.exactness == "lossy" and made.report.accepted > 0
    assert isinstance(named.drafter, Eagle) and made.report.bias == expected.report.bias and made.report.bias.tv > 0
    assert isinstance(decoder_for(model, "lantern", options=relaxed).drafter, ImageJacobi)


def test_rounds_without_states_are_not_taken_for_a_head() -> None:
    """What was captured for a method that reads no states serves no head, and the other way round."""
    plain = LlamaGenTarget(target("c2i"))
    cache = plain.start_fixed(condition("c2i"), 12, 4).cache
    assert plain.capture_key(cache) != plain.with_hidden((FINAL,)).capture_key(cache)


def test_what_was_read(tmp_path: Path) -> None:
    stored = read_checkpoint(str(save(tmp_path, "t2i2")))
    assert stored.layout.name == "lantern" and stored.ignored == () and stored.shared == ("lm_head.weight",)
    assert stored.architecture.grid and not stored.architecture.fused and stored.architecture.biases == {"fc"}


def test_what_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no input_type of a head of LANTERN is called 't2i3'"):
        read_checkpoint(str(save(tmp_path / "a", "t2i3")))
    with pytest.raises(ValueError, match="heads of 2 numbers"):
        read_checkpoint(str(save(tmp_path / "b", "t2i", {"num_attention_heads": 16, "num_key_value_heads": 16})))
    head = Eagle(EagleOptions(model=str(save(tmp_path / "c", "c2i"))))
    with pytest.raises(ValueError, match="states of 32 numbers, and those of the target have 16"):
        Decoder(TransformersTarget(llama()), head, Match(), k=3)
    small = LlamaGenTarget(target("c2i"))
    with pytest.raises(ValueError, match="behind its final norm"):
        small.with_hidden((0, 1))
