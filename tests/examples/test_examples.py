"""Every script of `examples/` runs as its first lines say; those of Ray are tried by `tests/engines`."""

import runpy
import sys
from io import StringIO
from pathlib import Path

import pytest
import torch
import transformers
from diffusers import DDPMPipeline, DDPMScheduler, UNet2DModel
from PIL import Image

import mmspec
from tests.image.test_steered_diffusion import stable_diffusion

FOLDER = Path(__file__).parents[2] / "examples"
ELSEWHERE = {"ray_serve", "ray_openai", "ray_batch", "learn_online"}
"""Scripts that need Ray, and one that takes ten minutes."""


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """Run a script with arguments, in an empty folder; returns what it printed."""
    monkeypatch.chdir(tmp_path)

    def called(name: str, *arguments: str) -> str:
        monkeypatch.setattr(sys, "argv", [f"{name}.py", *arguments])
        runpy.run_path(str(FOLDER / f"{name}.py"), run_name="__main__")
        return capsys.readouterr().out

    return called


def test_all_are_listed() -> None:
    tried = {name.removeprefix("test_") for name in globals() if name.startswith("test_")}
    assert {path.stem for path in FOLDER.glob("*.py")} == (tried & {p.stem for p in FOLDER.glob("*.py")}) | ELSEWHERE
    page = (FOLDER.parent / "docs" / "examples.md").read_text()
    assert all(f"examples/{path.name}" in page for path in FOLDER.glob("*.py"))


@pytest.mark.slow
def test_chat(run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", StringIO("But soft, what light is that?\nSpeak again!\n"))
    printed = run("chat")
    assert "draft-tree (invariant)" in printed and "ROMEO" not in printed.splitlines()[0]


@pytest.mark.slow
def test_json_schema(run) -> None:
    pytest.importorskip("llguidance")
    printed = run("json_schema")
    plain, drafted = (int(line.split()[0]) for line in printed.splitlines()[:2])
    assert drafted < plain / 2 and '"is_currently_employed_there"' in printed


@pytest.mark.slow
def test_eagle_head(run) -> None:
    assert "eagle (invariant): 120 units in" in run("eagle_head")


@pytest.mark.slow
def test_emoji_sheet(run) -> None:
    assert "gs-sjd (invariant)" in run("emoji_sheet", "out.png") and Image.open("out.png").width == 4 * 64


@pytest.mark.slow
def test_adaptive_negative(run) -> None:
    assert "gs-sjd (invariant)" in run("adaptive_negative", "out.png") and Image.open("out.png").size


@pytest.mark.slow
def test_adaptive_negative_diffusion(run, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a judge in the place of a vision-language model."""
    stable_diffusion().save_pretrained("tiny")
    for auto in (transformers.AutoModelForImageTextToText, transformers.AutoProcessor):
        monkeypatch.setattr(auto, "from_pretrained", lambda name, **how: torch.nn.Linear(1, 1))
    judged = mmspec.AdaptiveNegative(lambda picture: "cat")
    monkeypatch.setattr(mmspec.AdaptiveNegative, "from_model", lambda *given: judged)
    assert "(3, 'cat')" in run("adaptive_negative_diffusion", "a pet", "out.png", "tiny", "none")
    assert Image.open("out.png").size[0] == 2 * Image.open("out.png").size[1]


@pytest.mark.slow
def test_courts_walk(run) -> None:
    printed = run("courts_walk", "walk.gif")
    assert "frame-gs-sjd (invariant)" in printed and Image.open("walk.gif").n_frames >= 10


@pytest.mark.slow
def test_denoising(run) -> None:
    unet = UNet2DModel(
        sample_size=8,
        block_out_channels=(32, 32),
        layers_per_block=1,
        down_block_types=("DownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "UpBlock2D"),
    )
    DDPMPipeline(unet, DDPMScheduler()).save_pretrained("tiny")
    assert "speculative-denoising (lossless)" in run("denoising", "tiny", "out.png")
    assert Image.open("out.png").size == (8, 8)
