"""`mmspec demo video`: a GIF of every model, both methods in it, and a table that says what they took."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from typer import Typer
from typer.testing import CliRunner

from mmspec.kits.pictures.demo import CELL, GAP, labelled
from mmspec_video import commands as demo
from mmspec_video.models.next_frame import NextFrameDiT
from mmspec_video.models.token_world import TokenWorldModel
from mmspec_video.pipeline import NextFramePipeline
from mmspec_video.recorded import DENOISED, TOKENS, TOUR_CLIP
from tests.support.worlds import tiny_vae, tiny_vq
from tools.train.video.world import ACTIONS

SHORT = [3, 3, 3, 1, 1]
"""Numbers of actions."""


def lively(model: Any, spread: float) -> Any:
    generator = torch.Generator().manual_seed(1)
    for weights in model.parameters():
        weights.data.copy_(torch.randn(weights.shape, generator=generator) * spread)
    return model.eval()


@pytest.fixture
def worlds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    tokens = TokenWorldModel(10, 4, 4, 4, frames=5, dim=32, n_layer=1, n_head=2, multiple_of=16)
    dit = NextFrameDiT(8, 4, 4, 4, patch=2, dim=32, depth=1, heads=2, frames=8, steps=2)
    both = tmp_path / DENOISED, tmp_path / TOKENS
    parts = (lively(dit, 0.15), tiny_vae()), (lively(tokens, 0.6), tiny_vq())
    for folder, (model, autoencoder) in zip(both, parts, strict=True):
        NextFramePipeline(model, autoencoder, ACTIONS, 10).save_pretrained(folder)
    frames = np.random.default_rng(0).integers(0, 256, (1, 6, 8, 8, 3), dtype=np.uint8)
    np.savez(both[0] / TOUR_CLIP, frames=frames, actions=np.array([SHORT], np.uint8))
    monkeypatch.setattr(demo, "MODELS", tuple(map(str, both)))
    monkeypatch.setenv("COLUMNS", "250")
    return both


def test_a_gif_of_every_model_and_what_it_took(worlds: tuple[Path, Path], tmp_path: Path) -> None:
    out = tmp_path / "new" / "demo"
    app = Typer()
    app.command()(demo.demo_video)
    run = CliRunner().invoke(app, ["-o", str(out)])
    assert run.exit_code == 0, (run.output, run.exception)
    assert {file.name for file in out.iterdir()} == {
        f"{name}.{end}" for name in (DENOISED, TOKENS) for end in ("gif", "png")
    }
    for file in out.glob("*.gif"):
        with Image.open(file) as clip:
            assert clip.n_frames == 5 and clip.info["duration"] == 100 and clip.height > 2 * CELL
    lines = [line for line in run.output.splitlines() if "equal to plain's" in line]
    assert len(lines) == 2 and "branch-prediction" in lines[0] and "frame-gs-sjd" in lines[1]
    passes = [int(line.split("│")[4]) for line in run.output.splitlines() if line.count("│") == 7]
    assert passes[0] == 5 * 2 <= passes[1] and 0 < passes[3] < passes[2], "codes come in fewer passes"


def test_frames_keep_their_proportions_on_a_sheet() -> None:
    rows = [[Image.new("RGB", (4, 2), (shade, 0, 0)) for shade in shades] for shades in ((10, 60), (110, 160))]
    sheet = np.asarray(labelled(rows, ["plain", "other"], ["left", "right"]))
    tall = CELL // 2
    left, top = sheet.shape[1] - 2 * (CELL + GAP), sheet.shape[0] - 2 * (tall + GAP)
    for row, shades in enumerate(((10, 60), (110, 160))):
        for column, shade in enumerate(shades):
            y, x = top + row * (tall + GAP), left + column * (CELL + GAP)
            assert (sheet[y : y + tall, x : x + CELL] == (shade, 0, 0)).all()


def test_frames_that_differ_are_said_to(worlds: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    pipe = NextFramePipeline.from_pretrained(worlds[1])
    first, count = torch.rand(1, 3, 8, 8), [0]
    coded = demo._coded

    def tampered(*given: Any) -> Any:
        row, each = coded(*given)
        count[0] += 1
        if count[0] == 3:  # the second walk that counts
            row.frames[1] = Image.new("RGB", row.frames[1].size)
        return row, each

    monkeypatch.setattr(demo, "_coded", tampered)
    plain, ours = demo.walked(pipe, first, ["left", "right"])
    assert plain.method == "plain" and ours.method == "frame-gs-sjd" and plain.same and not ours.same


def test_ctrl_c_ends_the_demo(worlds: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    pipe, asked = NextFramePipeline.from_pretrained(worlds[0]), []

    def sleep(seconds: float) -> None:
        asked.append(seconds)
        if len(asked) == 4:  # in the first walk that counts
            raise KeyboardInterrupt

    monkeypatch.setattr(demo.time, "sleep", sleep)
    with pytest.warns(UserWarning, match="stopped by CTRL-C after 1 of 3 frames"), pytest.raises(KeyboardInterrupt):
        demo.walked(pipe, torch.rand(1, 3, 8, 8), ["left", "right", "left"])
