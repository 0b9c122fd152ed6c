"""Every recipe's work folder is of one run and one recipe; cards are written for what it made."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from mmspec import shipped
from mmspec.training.work import claimed
from tools.cards.models.text import SHIPPED
from tools.train.shipping import write_cards


def text(monkeypatch: pytest.MonkeyPatch) -> Any:
    from tools.train.text import llama as train
    from tools.train.text.corpus import Corpus

    monkeypatch.setattr(train.corpora, "load", lambda files: Corpus(["a"], ["b"], ["c"], ["d"]))
    monkeypatch.setattr(train, "_tokenizer", stopped)
    return lambda work, steps: train.train(work, work, [], replace(train.TextRecipe(), steps=steps))


def ssm(monkeypatch: pytest.MonkeyPatch) -> Any:
    from tools.train.text import hybrid as train
    from tools.train.text.corpus import Corpus

    monkeypatch.setattr(train.corpora, "load", lambda files: Corpus(["a"], ["b"], ["c"], ["d"]))
    monkeypatch.setattr(train, "load_tokenizer", stopped)
    return lambda work, steps: train.train(work, work, [], train.SsmRecipe(steps=steps))


def image(monkeypatch: pytest.MonkeyPatch) -> Any:
    from tools.train.pictures import codes
    from tools.train.pictures.data import Pictures

    monkeypatch.setattr(codes, "train", stopped)
    pictures = Pictures(torch.zeros(2, 3, 8, 8, dtype=torch.uint8), ["a", "b"])
    return lambda work, steps: codes.train_and_ship(pictures, codes.ImageRecipe(steps=steps), work, work, "cpu", print)


def continuous(monkeypatch: pytest.MonkeyPatch) -> Any:
    from tools.train.pictures import tokens
    from tools.train.pictures.data import Pictures

    monkeypatch.setattr(tokens, "train", stopped)
    pictures = Pictures(torch.zeros(2, 3, 8, 8, dtype=torch.uint8), ["a", "b"])
    return lambda work, steps: tokens.train_and_ship(
        pictures, tokens.ContinuousRecipe(steps=steps), work, work, "cpu", print
    )


def video(monkeypatch: pytest.MonkeyPatch) -> Any:
    from tools.train.video import ship
    from tools.train.video.recipe import VideoRecipe

    monkeypatch.setattr(ship, "recorded", stopped)
    return lambda work, steps: ship.train_and_ship(VideoRecipe(token_steps=steps), work, work, "cpu", False, print)


def stopped(*args: Any) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("plugin", [text, ssm, image, continuous, video])
def test_every_recipe_is_one_of_its_folder(plugin: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train = plugin(monkeypatch)
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            train(tmp_path / "work", 4)
    with pytest.raises(ValueError, match="steps 4 there, 5 here"):
        train(tmp_path / "work", 5)
    with claimed(tmp_path / "other", {}), pytest.raises(ValueError, match="is at work in"):
        train(tmp_path / "other", 4)


def test_all_cards_are_written(tmp_path: Path) -> None:
    for model in (model for model in SHIPPED if model.measured):
        shutil.copytree(shipped.asset(model.name), tmp_path / "assets" / model.name)
    write_cards(SHIPPED, tmp_path / "assets", tmp_path / "cards")
    assert {path.stem for path in (tmp_path / "cards").iterdir()} == {model.name for model in SHIPPED}
