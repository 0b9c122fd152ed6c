"""`fly`: the texts of the authors' own loop, which units stay, and the bias that is measured."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

import mmspec
from mmspec.core.decoder import Decoder
from mmspec.core.distributions import Categorical
from mmspec.core.drafters.draft_model import DraftModel
from mmspec.core.noise import Round
from mmspec.core.philox import PhiloxSource
from mmspec.core.types import Draft, Scores, Verdict
from mmspec.core.warp import Warp
from mmspec.hosts.target import TransformersTarget
from mmspec.testing.statistics import joint_p_value
from mmspec.testing.tiny_models import llama, prompt
from mmspec_zoo.relaxed.fly import Fly, FlyOptions
from tests.captured.conftest import _traced_alone, lockstep  # noqa: F401  a fixture
from tests.support.random_models import small

HERE = Path(__file__).parent


def opened(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    with safe_open(path, "pt") as file:
        return {key: file.get_tensor(key) for key in file.keys()}, file.metadata()  # noqa: SIM118


FOUND, ABOUT = opened(HERE / "fly.safetensors")


@cache
def target(noise: float = 0, seed: int = 0) -> Any:
    """The fixtures' target, or a copy that is a little wrong."""
    weights, about = opened(HERE.parents[1] / "heads/published/target.safetensors")
    model = LlamaForCausalLM(LlamaConfig(**json.loads(about["config"]))).eval()
    model.load_state_dict(weights)
    generator = torch.Generator().manual_seed(seed)
    for weight in model.parameters() if noise else ():
        weight.data += noise * weight.std() * torch.randn(weight.shape, generator=generator)
    return TransformersTarget(model)


@pytest.mark.parametrize("seed", range(3))
def test_texts_are_those_of_the_authors_loop(seed: int) -> None:
    """Its text is not the target's: some units are not what the target would have written."""
    rule = Fly(FlyOptions(entropy=float(ABOUT["entropy"]), window=int(ABOUT["window"])))
    drafter = DraftModel(target(float(ABOUT["noise"]), seed))
    known = FOUND[f"prompt.{seed}"][None, :-1]  # with the first unit
    expected = FOUND[f"text.{seed}"][known.shape[1] :][:100]
    inputs, warp = {"input_ids": known}, Warp.sampling(temperature=0)
    output = Decoder(target(), drafter, rule, k=15).generate(inputs, 130, warp=warp)
    assert output.units[0][:100].tolist() == expected.tolist()
    plain = Decoder(target()).generate(inputs, 130, warp=warp)
    assert plain.units[0][:100].tolist() != expected.tolist() and output.report.bias.tv > 0


VOCAB = 6


def judged(p: Tensor, x: list[int], rows: int = 1, valid: int | None = None, **options: Any) -> Verdict:
    """A chain that is judged: `p [node + 1, vocab]`."""
    units = torch.tensor([x]).expand(rows, -1)
    there = torch.arange(len(x))[None].expand(rows, -1) < (len(x) if valid is None else valid)
    draft = Draft.chain(units, valid=there).rooted(torch.zeros(rows, dtype=torch.int64), torch.full((rows,), 99))
    p = p.expand(rows, -1, -1)
    scores = Scores(Categorical(p), torch.ones(p.shape[:2], dtype=torch.bool), unprocessed=p.log())
    noise = Round(PhiloxSource.seeded(3, rows), torch.zeros(rows, dtype=torch.int64), [0] * rows)
    return Fly(FlyOptions(**options)).accept(draft, scores, noise)


def sure(units: list[int], unsure: tuple[int, ...] = ()) -> Tensor:
    """Distributions with nearly all mass on one unit each, and less at some places."""
    p = torch.full((len(units), VOCAB), 1e-9)
    p[torch.arange(len(units)), torch.tensor(units)] = 1
    for place in unsure:
        p[place, (units[place] + 1) % VOCAB] = 0.3
    return p / p.sum(-1, keepdim=True)


OWN = [2, 3, 4, 5, 0, 1, 2]  # the last one is behind the chain


@pytest.mark.parametrize(
    ("x", "unsure", "accepted"),
    [
        ([2, 3, 4, 5, 0, 1], (), 6),
        ([2, 0, 4, 5, 0, 1], (), 1),  # the target is sure of 3
        ([2, 0, 4, 5, 0, 1], (1,), 6),  # it hesitates, and agrees with two that follow
        ([2, 0, 4, 1, 0, 1], (1,), 1),  # with one
        ([2, 0, 1, 5, 0, 1], (1, 2), 1),  # two in a row
        ([0, 3, 4, 1, 0, 1], (0, 3), 3),  # the second one's window ends with the draft
        ([2, 3, 0, 5, 0, 1], (2,), 6),
    ],
)
def test_what_stays(x: list[int], unsure: tuple[int, ...], accepted: int) -> None:
    p = sure(OWN, unsure)
    p[list(unsure)] = sure(OWN)[list(unsure)] * 0.8 + 0.2 / VOCAB  # nearly always the target's own unit
    verdict = judged(p, x, rows=64, window=3, entropy=0.3)
    assert int(verdict.length.mode().values) == accepted


def test_a_window_ends_in_front_of_padding() -> None:
    p = sure(OWN) * 0.9 + 0.1 / VOCAB
    lengths = [judged(p, [0, *OWN[1:6]], 300, valid=valid, window=3, entropy=0.1).length for valid in (3, 4)]
    assert int(lengths[0].max()) <= 3 and float((lengths[0] > 0).float().mean()) < 0.1
    assert float((lengths[1] > 0).float().mean()) > 0.6


def test_the_output_follows_the_closed_form() -> None:
    """The unit at the root, given the draft: the window's two units are drawn by chance."""
    g = torch.Generator().manual_seed(4)
    p, x, rows = torch.softmax(torch.randn(5, VOCAB, generator=g), -1), [1, 2, 3, 4], 40_000
    p[1:3] *= 0.3
    p[1, 2] += 0.7
    p[2, 3] += 0.7
    verdict = judged(p, x, rows, window=3, entropy=0.5)
    m = p[1, 2] * p[2, 3]
    out = p[0] * (1 - m)
    out[1] = p[0, 1] + (1 - p[0, 1]) * m
    first = torch.where(verdict.length > 0, 1, verdict.unit)
    assert joint_p_value(first[:, None], out) > 1e-4 > joint_p_value(first[:, None], p[0])
    assert verdict.tv is not None and verdict.excess_acceptance is not None
    assert torch.allclose(verdict.tv[0, 0], (out - p[0]).abs().sum() / 2, atol=1e-6)
    assert torch.allclose(verdict.tv, verdict.excess_acceptance) and not verdict.tv[:, 2:].any()
    exact = judged(p, x, rows, window=3, entropy=9.0)
    assert joint_p_value(torch.where(exact.length > 0, 1, exact.unit)[:, None], p[0]) > 1e-4
    assert exact.tv is not None and not exact.tv.any()


@pytest.mark.slow
@pytest.mark.parametrize("warp", [Warp.sampling(temperature=0), Warp.sampling(0.9)], ids=["greedy", "sampled"])
def test_captured_rounds_are_the_eager_loops(warp: Warp) -> None:
    def decoder() -> Decoder:
        rule = Fly(FlyOptions(entropy=0.1, window=2))
        return Decoder(target(), DraftModel(target(0.1, 1)), rule, k=5, shape=None, compile=True)

    eager, captured = decoder(), decoder()
    eager.captures.refused = True
    inputs = {"input_ids": torch.stack([FOUND["prompt.0"][-8:], FOUND["prompt.1"][-8:]])}
    assert lockstep(eager, captured, inputs, 30, seed=3, warp=warp) > 3


def test_by_name() -> None:
    model = llama()
    with mmspec.enable(model, "fly", drafter=small(), entropy=0.05, window=2, k=6) as spec:
        model.generate(**prompt([0, 1]), max_new_tokens=40, do_sample=False, pad_token_id=0)
    assert spec.report.exactness == "lossy" and spec.report.bias.tv > 0
    with pytest.raises(ValueError, match="window"):
        mmspec.enable(model, "fly", drafter=small(), window=1)
