"""Folders of training: one run, one recipe; damaged files are named; a loss that is no number any more stops it."""

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from mmspec.training.loop import CHECKPOINT, LoopOptions, fit
from mmspec.training.work import LOCK, RECIPE, cached, claimed, digest, load_tensors, save_tensors

OPTIONS = LoopOptions(6, 0.1, warmup=0, save_every=2, bf16=False)


def trained(folder: Path, options: LoopOptions = OPTIONS, loss: Callable[[int, Tensor], Tensor] | None = None) -> Any:
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 1)

    def loss_of(model: Any, step: int) -> Tensor:
        value = model(torch.ones(2, 3)).square().mean()
        return value if loss is None else loss(step, value)

    fit(model, lambda step: step, loss_of, options, folder, say=lambda line: None)
    return model


def test_a_second_run_in_one_folder_is_refused(tmp_path: Path) -> None:

    (tmp_path / LOCK).write_text("12345")  # of a run that was killed: nobody holds it
    with claimed(tmp_path, {}):
        for other in (lambda: trained(tmp_path), lambda: claimed(tmp_path, {}).__enter__()):
            with pytest.raises(ValueError, match=f"process {os.getpid()} is at work in .*; wait for it"):
                other()
        assert not (tmp_path / CHECKPOINT).exists()
    trained(tmp_path / "free")
    with claimed(tmp_path, {}):
        pass


def test_another_recipe_is_refused_and_what_differs_is_named(tmp_path: Path) -> None:
    with claimed(tmp_path, {"codes": 512, "channels": (1, 2), "steps": 4}):
        pass
    with pytest.raises(ValueError, match=r"another recipe \(codes 512 there, 64 here, seed None there, 1 here\)"):
        claimed(tmp_path, {"codes": 64, "channels": (1, 2), "steps": 4, "seed": 1}).__enter__()
    for names in (("codes", "channels", "steps"), ("codes", "steps")):  # the last: a version without a name
        with claimed(tmp_path, {name: {"codes": 512, "channels": (1, 2), "steps": 4}[name] for name in names}):
            pass
    (tmp_path / RECIPE).write_text("")
    with pytest.raises(ValueError, match=r"recipe\.json is empty; delete it"):
        claimed(tmp_path, {}).__enter__()
    (tmp_path / RECIPE).unlink()
    save_tensors(tmp_path / "codes.pt", torch.zeros(1))
    with pytest.raises(ValueError, match=r"holds 'codes\.pt' and no recipe\.json: .* not those of a run"):
        claimed(tmp_path, {}).__enter__()


def test_checkpoints_of_other_options_are_not_gone_on_from(tmp_path: Path) -> None:
    trained(tmp_path)
    with pytest.raises(ValueError, match=r"\(steps 6 there, 9 here, learning_rate 0\.1 there, 0\.2 here\)"):
        trained(tmp_path, replace(OPTIONS, steps=9, learning_rate=0.2))
    trained(tmp_path, replace(OPTIONS, save_every=3, log_every=1))  # these change nothing that is kept


def broken(path: Path) -> dict[str, bytes]:
    whole, numbers = path.read_bytes(), load_tensors(path)["model"]["weight"].numpy().tobytes()
    save_tensors(path, {"model": {"bias": torch.zeros(7)}, "optimizers": [], "step": 2})
    other = path.read_bytes()
    save_tensors(path, [1, 2])
    return {
        "empty": b"",
        "half": whole[: len(whole) // 2],
        "text": b"not a zip",
        "other": other,
        "no dict": path.read_bytes(),
        "changed": whole.replace(numbers, bytes(reversed(numbers))),
    }


@pytest.mark.parametrize("kind", ["empty", "half", "text", "other", "no dict", "changed"])
def test_a_damaged_checkpoint_is_named(tmp_path: Path, kind: str) -> None:
    trained(tmp_path)
    path = tmp_path / CHECKPOINT
    path.write_bytes(broken(path)[kind])
    with pytest.raises(ValueError) as refused:
        trained(tmp_path)
    assert str(refused.value).startswith(f"{path} is ") and "delete it" in str(refused.value)
    assert "\n" not in str(refused.value) and "weights_only" not in str(refused.value)
    path.unlink()
    trained(tmp_path)


@pytest.mark.parametrize("value", ["nan", "inf"])
def test_a_loss_that_is_no_number_stops_with_the_last_good_checkpoint(tmp_path: Path, value: str) -> None:
    def loss(step: int, good: Tensor) -> Tensor:
        return good * float(value) if step == 4 else good

    with pytest.raises(ValueError, match=f"stopped at step 5: its loss is {value} .*checkpoint.pt is from before"):
        trained(tmp_path, loss=loss)
    kept = load_tensors(tmp_path / CHECKPOINT)
    assert kept["step"] == 4 and all(bool(weights.isfinite().all()) for weights in kept["model"].values())
    early = replace(OPTIONS, steps=5, save_every=5)
    with pytest.raises(ValueError, match="no checkpoint was written"):
        trained(tmp_path / "early", early, loss)


def test_a_gradient_that_is_no_number_stops_it_too(tmp_path: Path) -> None:
    def loss(step: int, good: Tensor) -> Tensor:
        return (good * 0).sqrt() if step == 2 else good  # 0, whose slope is not finite

    with pytest.raises(ValueError, match="stopped at step 3: its loss is 0 and the norm of its gradient nan"):
        trained(tmp_path, loss=loss)
    assert load_tensors(tmp_path / CHECKPOINT)["step"] == 2


def test_what_was_encoded_by_another_encoder_is_encoded_anew(tmp_path: Path) -> None:
    path, made = tmp_path / "codes.pt", list[int]()

    def encode(weights: Tensor) -> Tensor:
        return cached(path, (weights, torch.arange(4)), lambda: made.append(1) or weights + 1)

    first, second = torch.zeros(2), torch.ones(2)
    assert encode(first).tolist() == encode(first).tolist() == [1, 1] and len(made) == 1
    assert encode(second).tolist() == [2, 2] and len(made) == 2
    path.write_bytes(b"")
    with pytest.raises(ValueError, match=r"codes\.pt is empty; delete it"):
        encode(second)
    torch.save(torch.zeros(2), path)  # as earlier versions kept it: of whom, nobody knows
    assert encode(first).tolist() == [1, 1]


def test_two_tensors_are_computed_once(tmp_path: Path) -> None:
    pair, made = (torch.zeros(2), torch.ones(3)), list[int]()
    for _ in range(2):
        kept = cached(tmp_path / "states.pt", pair, lambda: made.append(1) or pair)
        assert all(map(torch.equal, kept, pair)) and len(made) == 1


def test_digests_tell_contents_shapes_types_and_borders_apart() -> None:
    zeros = torch.zeros(2, 3)
    others = [zeros, zeros.T, zeros.half(), zeros + 1, "ab", "a b", torch.zeros(0)]
    assert len({digest([one]) for one in others}) == len(others)
    assert digest([torch.zeros(1, 1).expand(3, -1)]) == digest([torch.zeros(3, 1)])
    assert digest(["ab", "c"]) != digest(["a", "bc"]) and digest([zeros]) == digest([zeros.clone()])
