"""Recipe `flow`: its loss, the stock pipeline that it writes, and the calls that are counted with it."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from typer.testing import CliRunner

import mmspec
from mmspec.report import views
from tools.bench import denoising
from tools.bench.__main__ import build
from tools.train.pictures import flow
from tools.train.pictures.data import Pictures

CAPTIONS = ["red heart", "police officer skin 4", "princess", "large circle"]
STEPS = 5


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a model that saw a few pictures of noise."""
    images = torch.randint(256, (20, 3, 64, 64), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    place = tmp_path_factory.mktemp("flow")
    recipe = flow.FlowRecipe(heads=1, layers=1, steps=2, batch=3)
    lost = flow.train_flow(
        Pictures(images, CAPTIONS * 5), recipe, place / "made", place / "work", "cpu", lambda _: None
    )
    assert 0.5 < lost < 20
    return place / "made"


def test_the_loss_is_that_of_the_velocity() -> None:
    """Of a network that knows the latents there is none, at any level of noise, and levels are uniform."""
    g = torch.Generator().manual_seed(0)
    latents, random = torch.randn(2000, 2, 1, 1, generator=g), torch.randn(2000, 3, 1, 1, generator=g)
    levels = list[Tensor]()

    class Knows(nn.Module):
        def forward(self, noisy: Tensor, features: Tensor, pooled: Tensor, time: Tensor, **how: bool) -> tuple[Tensor]:
            level = (time / 1000)[:, None, None, None]
            levels.append(level.flatten())
            return ((noisy - latents) / level,)

    assert float(flow.flow_loss(Knows(), (latents, torch.zeros(2000, 1, 1), random))) < 1e-4
    assert abs(levels[0].mean() - 0.5) < 0.03 and abs(levels[0].std() - 12**-0.5) < 0.02


def test_the_folder_is_a_stock_pipelines(folder: Path) -> None:
    pipe, prompts = flow.load_flow(folder)
    pipe.set_progress_bar_config(disable=True)
    call = {"num_inference_steps": STEPS, "guidance_scale": 1.0, "output_type": "latent"}
    with mmspec.enable(pipe) as spec:
        made = pipe(**{name: rows[:1] for name, rows in prompts.items()}, **call).images
    assert made.shape == (1, 8, 8, 8) and made.isfinite().all()
    assert spec.method == "speculative-denoising" and spec.report.steps == STEPS


def test_its_calls_are_counted(folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(denoising, "DRAFTS", (2,))
    options = denoising.DenoisingOptions(2, 2, STEPS)
    result = denoising.bench_denoising(options, "cpu", lambda plan: lambda: None, folder)
    (setting,) = result.settings
    plain, ours = views.real(result, setting)
    assert setting == f"flow, {STEPS} steps" and plain.quality == {"calls": STEPS, "call_compression": 1}
    assert ours.quality["calls"] <= STEPS and 0 < ours.quality["p_value"] <= 1
    run = CliRunner().invoke(build(), ["denoising", "--model", str(tmp_path)])
    assert isinstance(run.exception, ValueError) and "tools.train flow" in str(run.exception)
