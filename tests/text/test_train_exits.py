"""Models that are left early: their weights and losses written out, what is dropped, what they become."""

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.functional import cross_entropy
from transformers import Mamba2Config, Mamba2ForCausalLM

import mmspec
from mmspec.hosts.draft_models import own_target
from mmspec.hosts.loading import load_model, load_tokenizer
from mmspec.training.losses import DraftLoss
from mmspec_text.training import run
from mmspec_text.training.command import train_drafter
from mmspec_text.training.exits import (
    begun_layer_skip,
    begun_sorted,
    dropout_rates,
    exit_loss,
    exit_scores,
    layer_skip_weights,
    layers_dropped,
    sorted_exits,
)
from mmspec_text.training.recipe import DrafterRecipe
from mmspec_text.training.teacher import Teacher
from mmspec_text.training.texts import Batch
from tests.support import byte_llama

KINDS = ("sorted", "layer-skip")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return byte_llama.save(tmp_path_factory.mktemp("target") / "tiny")


@pytest.fixture
def model(tiny: Path) -> Any:
    """With weights under which its layers say different things."""
    loaded = load_model(str(tiny)).requires_grad_(False)
    g = torch.Generator().manual_seed(1)
    for weights in loaded.parameters():
        weights.add_(0.3 * torch.randn(weights.shape, generator=g))
    return loaded


@pytest.fixture
def train(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    monkeypatch.setattr(run, "whether_it_pays", lambda model, method, drafter, held: f"{method} {list(drafter)}")
    data = tmp_path / "texts.jsonl"
    data.write_text("".join(json.dumps({"text": f"def f{i}(x):\n    return x + {i}\n"}) + "\n" for i in range(60)))

    def once(kind: str, name: str = "drafter", **options: Any) -> Path:
        how: dict[str, Any] = {"steps": 3, "batch": 2, "context": 16, "work": tmp_path / f"{name}-work", **options}
        train_drafter(str(tiny), tmp_path / name, kind=kind, data=[data], **how)
        return tmp_path / name

    return once


def some() -> Batch:
    ids = torch.randint(1, 257, (2, 12), generator=torch.Generator().manual_seed(3))
    counted = torch.ones_like(ids, dtype=torch.bool)
    counted[1, :5] = False
    return Batch(ids, counted, seed=5)


def test_what_layer_skip_weighs_and_drops() -> None:
    """Four layers by hand: exits weigh 1, 3, 6 and 10; half of that early; one of two early ones a step."""
    assert layer_skip_weights(4, 0.5, 1, 7) == pytest.approx({1: 0.5 / 15, 2: 1.5 / 15, 3: 3 / 15, 4: 10 / 15})
    assert layer_skip_weights(4, 0.5, 2, 0) == pytest.approx({1: 0.5 / 13.5, 3: 3 / 13.5, 4: 10 / 13.5})
    assert layer_skip_weights(4, 0.5, 2, 1) == pytest.approx({2: 1.5 / 11.5, 4: 10 / 11.5})
    assert [set(layer_skip_weights(8, 0.2, 8, step)) for step in (0, 6, 7)] == [{1, 8}, {7, 8}, {8}]
    assert dropout_rates(3, 0.2) == pytest.approx([0, 0.2 * (2**0.5 - 1), 0.2])
    assert sorted_exits(12) == (6, 9, 12) and sorted_exits(2) == (1, 2)


@pytest.mark.parametrize("kind", ["hard", "kl"])
def test_the_loss_is_that_of_every_exit_by_its_weight(kind: str, model: Any) -> None:
    """Each exit is an unmodified model of so many layers; written out row by row."""
    student, batch = begun_layer_skip(model, DrafterRecipe()), some()
    info, weights = own_target(student).model_info, {1: 0.2, 2: 0.3, 3: 0.5}
    loss = DraftLoss(kind)  # type: ignore[arg-type]
    found = exit_loss(info, Teacher(model), loss, lambda step: weights, [0.0] * 3)(student, (0, batch))
    total, right, mask = 0.0, batch.ids[:, 1:], batch.counted[:, :-1]
    p = model(batch.ids).logits[:, :-1].softmax(-1)
    for layers, weight in weights.items():
        cut = copy.deepcopy(model)
        del cut.model.layers[layers:]
        said = cut(batch.ids, use_cache=False).logits[:, :-1]
        hard = cross_entropy(said[mask], right[mask])
        soft = (p * (p.log() - said.log_softmax(-1))).sum(-1)[mask].mean()
        total += weight * float(hard if kind == "hard" else soft)
    assert float(found.detach()) == pytest.approx(total, rel=1e-4)
    found.backward()
    assert student.model.layers[0].mlp.up_proj.weight.grad.abs().sum() > 0
    assert all(p.grad is None for p in model.parameters())


def test_a_dropped_layer_is_not_there_for_its_sequences(model: Any) -> None:
    """As a function of the batch; nothing is left behind."""
    student, ids = begun_layer_skip(model, DrafterRecipe()), some().ids
    info = own_target(student).model_info
    whole = exit_scores(info, ids, (1, 2, 3))
    cut = copy.deepcopy(model)
    del cut.model.layers[1]
    without = cut(ids).logits
    seen = set()
    for seed in range(20):
        with torch.no_grad(), layers_dropped(info, [0.0, 0.5, 0.0], Batch.whole(ids, seed)):
            dropped = exit_scores(info, ids, (1, 2, 3))
        assert torch.equal(dropped[1], whole[1])
        gone = [not torch.equal(a, b) for a, b in zip(dropped[2], whole[2], strict=True)]
        for row, left in enumerate(gone):
            assert torch.allclose(dropped[3][row], (without if left else whole[3])[row], atol=1e-5)
        seen.add(tuple(gone))
    assert len(seen) == 4 and torch.equal(exit_scores(info, ids, (1, 2, 3))[3], whole[3])


def test_a_sorted_model_is_the_first_layers_of_its_target(model: Any, train: Callable) -> None:
    begun = begun_sorted(model, DrafterRecipe(layers=2))
    own = model.state_dict()
    assert len(begun.model.layers) == 2 and begun.config.sorted_exits == [1, 2]
    assert all(torch.equal(value, own[key]) for key, value in begun.state_dict().items())
    folder = train("sorted", layers=3, loss="kl")
    facts = json.loads((folder / "training.json").read_text())
    assert facts["exits"] == [1, 3] and len(facts["held_out"]["texts"]["accepted"]) == 2
    assert facts["recipe"]["layers"] == 3 and "dropout" not in facts["recipe"]
    prompt = torch.arange(1, 8)[None]
    plain = model.generate(prompt, max_new_tokens=12, do_sample=False)
    with mmspec.enable(model, "s2d", drafter=str(folder), k=3, stop=0.0) as enabled:
        assert torch.equal(model.generate(prompt, max_new_tokens=12, do_sample=False), plain)
    assert enabled.report.drafted > 0
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "sorted_exits": ["1"]}))
    with pytest.raises(ValueError, match="sorted_exits in the draft model's config is a list of numbers of layers"):
        mmspec.enable(model, "s2d", drafter=str(folder), k=3)


def test_a_target_that_learnt_to_be_left_early(train: Callable, capsys: pytest.CaptureFixture[str]) -> None:
    """It is itself the target of the methods that leave it."""
    folder = train("layer-skip", rotation=1, learning_rate=1e-2)
    said = capsys.readouterr().out.splitlines()
    assert said[-2:] == ["layer-skip []", f"Next: mmspec generate text --model {folder} --method layer-skip 'a prompt'"]
    facts = json.loads((folder / "training.json").read_text())
    assert facts["exits"] == [1, 2, 3] and facts["held_out"]["texts"]["accepted"][-1] == pytest.approx(1)
    assert 'mmspec.enable(model, "layer-skip"):' in (folder / "README.md").read_text()
    early = load_model(str(folder))
    prompt = load_tokenizer(str(folder))("def f1(x):", return_tensors="pt", return_token_type_ids=False)
    plain = early.generate(**prompt, max_new_tokens=12, do_sample=False)
    for method in ("layer-skip", "del"):
        with mmspec.enable(early, method, k=2):
            assert torch.equal(early.generate(**prompt, max_new_tokens=12, do_sample=False), plain)


@pytest.mark.parametrize("kind", KINDS)
def test_models_that_are_not_left_early(kind: str, model: Any, train: Callable) -> None:
    begin: Any = {"sorted": begun_sorted, "layer-skip": begun_layer_skip}[kind]
    sizes = dict(hidden_size=16, num_hidden_layers=2, num_heads=4, head_dim=8, state_size=8, n_groups=1)
    with pytest.raises(ValueError, match="has recurrent layers"):
        begin(Mamba2ForCausalLM(Mamba2Config(vocab_size=40, **sizes)), DrafterRecipe())
    del model.model.layers[1:]
    model.config.num_hidden_layers = 1
    with pytest.raises(ValueError, match="has one layer, and is not left early"):
        begin(model, DrafterRecipe())
    with pytest.raises(ValueError, match=f"keep_tokens is for .*, and not for {kind}: others learn at several exits"):
        train(kind, keep_tokens=0.5)
    with pytest.raises(ValueError, match="rotation is for --kind layer-skip, and not for eagle3: others have no early"):
        train("eagle3", rotation=2)
