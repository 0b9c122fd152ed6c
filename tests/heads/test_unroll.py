"""A head unrolled over a text computes what it drafts: step j of row t is its draft behind row t, told the text."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from mmspec.core.types import Draft
from mmspec.hosts.model_info import ModelInfo
from mmspec.testing.tiny_models import llama
from mmspec_text.drafters.dflash import Context
from mmspec_text.drafters.heads.cache import HeadCache
from mmspec_text.drafters.heads.eagle.network import EagleNetwork
from mmspec_text.drafters.heads.head import Head
from mmspec_text.drafters.heads.mtp.network import MtpNetwork
from mmspec_text.drafters.heads.pathwise.head import Walk
from mmspec_text.drafters.heads.rows import Rows
from mmspec_text.drafters.heads.unroll import along, block_states, unrolled, walked
from mmspec_text.training.teacher import Teacher
from tests.heads import mtp_heads
from tests.heads.conftest import HEADS, checkpoint
from tests.heads.test_dflash_drafts import HEADS as BLOCKS
from tests.support.cached_heads import teacher_forced
from tests.support.path_heads import LAYOUTS
from tools.bench.text.teacher_forcing import teacher_force

UNITS, STEPS = 9, 3


def head_of(name: str) -> EagleNetwork:
    network = checkpoint(name).network(7)
    model = llama()
    network.join(model.get_input_embeddings(), model.get_output_embeddings(), model.device, model.dtype)
    return network


def text(width: int) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(0)
    return torch.randn(2, UNITS, width, generator=g), torch.randint(7, (2, UNITS), generator=g)


def layer_of(name: str) -> MtpNetwork:
    model_info = ModelInfo.of(llama())
    network = MtpNetwork(mtp_heads.checkpoint(name), model_info)
    network.join_model(model_info)
    return network


def drafted(network: Head, features: Tensor, units: Tensor, row: int) -> list[Tensor]:
    """Logits at every depth of a draft behind a row, through the drafter's cache, with the text's units."""
    cache = HeadCache(network, 2, UNITS + STEPS, units.device)
    known = torch.full((2,), row + 1)
    cache.read(Rows(features[:, : row + 1], known), units[:, 1 : row + 2])
    found = [cache.at_root().whole().logits]
    for depth in range(1, STEPS):
        draft = Draft.chain(units[:, row + 2 : row + 2 + depth]).rooted(units[:, row + 1], known + UNITS)
        found.append(cache.grow(draft, depth).whole().logits)
    return [logits[:, 0] for logits in found if logits is not None]


@pytest.mark.parametrize("name", HEADS)
def test_every_step_is_a_draft(name: str) -> None:
    network = head_of(name)
    assert_drafts(network, *text(network.architecture.width))


@pytest.mark.parametrize("name", ["one", "without-a-norm"])
def test_every_step_of_a_multi_token_layer_is_a_draft(name: str) -> None:
    network = layer_of(name)
    features, units = text(16)
    assert_drafts(network, features, units)
    with torch.no_grad():
        (first,) = unrolled(network, features, units, 1)
        forced = teacher_forced(network, features[:, :-1], units[:, 1:])
    assert torch.allclose(network.logits(first), forced, atol=1e-5)


@pytest.mark.parametrize("name", ["medusa", "medusa-vllm-targets-output", "hydra", "mlp-speculator", "arctic-lstm"])
def test_every_step_along_a_path_is_a_draft(name: str, tmp_path: Path) -> None:
    """Behind every row as a root, through what a draft keeps of the level before."""
    model, layout = llama(), LAYOUTS[name]
    network = layout.read(str(layout.save(tmp_path))).network(7)
    network.join(model.get_input_embeddings(), model.get_output_embeddings(), model.device, model.dtype)
    features, units = text(16)
    with torch.no_grad():
        steps = list(walked(network, features, units, STEPS))
    assert [step.shape for step in steps] == [(2, UNITS - STEPS, 7)] * STEPS
    for row in range(UNITS - STEPS):
        walk = Walk(network, network.rooted(features[:, row : row + 1], units[:, row + 1 : row + 2]).detach())
        found = [walk.output().logits]
        for depth in range(1, STEPS):
            draft = Draft.chain(units[:, row + 2 : row + 2 + depth])
            found.append(walk.grow(draft.rooted(units[:, row + 1], torch.full((2,), row)), depth).logits)
        for step, logits in zip(steps, found, strict=True):
            assert logits is not None and torch.allclose(step[:, row], logits[:, 0], atol=1e-5)
    with pytest.raises(ValueError, match="a text of 9 units has no row"):
        list(walked(network, features, units, 9))


@pytest.mark.parametrize("name", ["product", "window"])
def test_every_block_is_a_draft(name: str) -> None:
    """Behind all roots in one pass: keys before the root, windows, and what rows of a block see of one another."""
    stored, model = BLOCKS[name], llama()
    network = stored.network(7)
    network.join(model.get_input_embeddings(), model.get_output_embeddings(), model.device, model.dtype)
    features, units = text(32)
    roots = torch.tensor([[5, 1, 8], [2, 7, 3]])
    with torch.no_grad():
        found = network.scored(block_states(network, features, units, roots))
    assert found.shape == (2, 3, stored.architecture.units, 7)
    for column in range(3):
        known = roots[:, column]
        context = Context(network, 2, UNITS, units.device)
        context.read(Rows.at_left(features, known))
        block = context.block(units.gather(1, known[:, None])[:, 0])
        assert torch.allclose(found[:, column], block.scored, rtol=1e-4, atol=1e-4)
        ours = next(iter(along(network, features, units, 1)))[torch.arange(2), (known - 1).clamp(max=7)]
        inside = known <= 8
        assert torch.allclose(ours[inside], block.scored[inside, 0], rtol=1e-4, atol=1e-4)
    learnt = network.requires_grad_(True)
    learnt.scored(block_states(learnt, features, units, roots)).square().sum().backward()
    assert all(weights.grad is not None and bool(weights.grad.any()) for weights in learnt.parameters())
    model.zero_grad()


def assert_drafts(network: Head, features: Tensor, units: Tensor) -> None:
    """The unroll's logits are those of drafts behind every row."""
    with torch.no_grad():
        steps = [network.logits(states) for states in unrolled(network, features, units, STEPS)]
    assert [step.shape for step in steps] == [(2, UNITS - STEPS, 7)] * STEPS
    for row in range(UNITS - STEPS):
        for step, logits in zip(steps, drafted(network, features, units, row), strict=True):
            assert torch.allclose(step[:, row], logits, rtol=1e-4, atol=1e-4)


def test_the_first_step_is_teacher_forcing() -> None:
    network = head_of("eagle-3")
    features, units = text(network.architecture.width)
    with torch.no_grad():
        (first,) = unrolled(network, features, units, 1)
        forced = teacher_forced(network, features[:, :-1], units[:, 1:])
    assert torch.allclose(network.logits(first), forced, atol=1e-5)


def test_gradients_flow_through_all_steps() -> None:
    network = head_of("eagle-3").requires_grad_(True)
    features, units = text(network.architecture.width)
    for states in unrolled(network, features.requires_grad_(), units, STEPS):
        last = states
    network.scored(last).square().sum().backward()
    assert all(weights.grad is not None and bool(weights.grad.any()) for weights in network.parameters())
    llama().zero_grad()


def test_a_text_that_is_too_short() -> None:
    network = head_of("eagle-3")
    features, units = text(network.architecture.width)
    with pytest.raises(ValueError, match="a text of 9 units has no row that is followed by 9 units"):
        list(unrolled(network, features, units, 9))


def test_teacher_forcing_of_the_benchmark_counts_what_the_unroll_guesses(decoder: Callable) -> None:
    """The head begins with the prompt's states again, after the text's first unit took the place of the target's."""
    k, given = 2, 5
    text = torch.randint(7, (1, 60), generator=torch.Generator().manual_seed(4))
    led = teacher_force(decoder("eagle-3", k=k, form="chain"), [text], given)
    network = head_of("eagle-3")
    features, _ = Teacher(llama(), checkpoint("eagle-3").layer_ids)(text)
    assert features is not None
    with torch.no_grad():
        guesses = [network.logits(states).argmax(-1)[0] for states in unrolled(network, features, text, k)]
    units, at, rounds, hits = text[0].tolist(), given, 0, 0
    while at < 59:
        found, room = 0, 59 - at - 1  # one unit is emitted whatever was drafted
        while found < min(k, room) and int(guesses[found][at - 1]) == units[at + 1 + found]:
            found += 1
        at, rounds, hits = at + found + 1, rounds + 1, hits + found
    assert hits > 3 and (led.rounds, sum(led.hits.values())) == (rounds, hits)
