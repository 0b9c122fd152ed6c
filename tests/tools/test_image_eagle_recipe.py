"""Recipe `image-eagle`: what a head learns from, its files, and drafts with them."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import mmspec
from mmspec_text.drafters.heads.eagle.checkpoint import read_checkpoint
from mmspec_text.drafters.heads.eagle.network import by_halves
from tools.train.pictures import head
from tools.train.pictures.data import Pictures
from tools.train.pictures.head import PictureTeacher, stored, train_head, untrained

CAPTIONS = ["red heart", "cat face", "woman"] * 7


@pytest.fixture(scope="module")
def pipe() -> Any:
    made = mmspec.Pipeline.from_pretrained("mmspec/emoji", method="plain")
    made.set_progress_bar_config(disable=True)
    return made


def test_the_teacher_says_what_the_model_does(pipe: Any) -> None:
    """Behind its caption, or behind none; the state of a code is that from which the next one is scored."""
    teacher, codes = PictureTeacher(pipe, CAPTIONS), torch.arange(10).view(2, 5)
    ids = teacher.rows(torch.tensor([1, -1 - 2]), codes)
    states, logits = teacher(ids)
    positive = pipe.encode_prompt("cat face", guided=True)
    with torch.no_grad():
        theirs = pipe.transformer(positive.given, codes[:1], positive.mask)
        null = pipe.transformer.cls_embedding.null(1)
        bare = pipe.transformer(null, codes[1:], None)
        scored = pipe.transformer.output(states)
    ours = logits[:, teacher.length - 1 : -1]
    torch.testing.assert_close(ours[:1], theirs, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(ours[1:], bare, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(scored, logits)
    assert teacher.counted(ids)[0].tolist() == [False] * teacher.length + [True] * 5


def test_stored_weights_are_in_the_order_of_the_authors(pipe: Any) -> None:
    made = untrained(pipe.transformer, head.RECIPE)
    kept = stored(made, pipe.transformer.tok_embeddings.weight)
    back = by_halves(kept, made.architecture)
    for name in ("q_proj", "k_proj"):
        key = f"layers.0.self_attn.{name}.weight"
        assert torch.equal(back[key], made.state_dict()[key].half()) and not torch.equal(back[key], kept[key])


def test_a_head_is_trained_written_and_drafts(pipe: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images = torch.randint(256, (21, 3, 64, 64), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    recipe, folder, said = replace(head.RECIPE, steps=2, batch=2), tmp_path / "made", list[str]()
    facts = train_head(Pictures(images, CAPTIONS), recipe, folder, tmp_path / "work", said.append)
    assert facts["held_out"]["pictures"]["length"] >= 1 and facts["parameters"] < 1e6
    assert read_checkpoint(str(folder)).layout.name == "lantern"
    plain = pipe("red heart", seed=1, guidance_scale=2.0, output_type="latent").codes
    for how in ({}, {"rule": "relaxed", "residual": "released", "delta": 0.0}):
        drafted = pipe.use("eagle", drafter=str(folder), k=3, **how)
        drawn = drafted("red heart", seed=1, guidance_scale=2.0, output_type="latent")
        assert how or torch.equal(drawn.codes, plain)
        assert drawn.report.accepted > 0
