"""`python -m tools.bench denoising`: calls of the network, counted where they are made."""

import pytest
import torch
from typer.testing import CliRunner

from mmspec.report import views
from tools.bench import denoising
from tools.bench.__main__ import build
from tools.report import markdown
from tools.report.whole import WholeResult, load_whole

STEPS = 12


@pytest.fixture(scope="module")
def small():
    sizes = {"sample_size": 8, "layers_per_block": 1, "block_out_channels": (8,), "norm_num_groups": 4}
    blocks = {"down_block_types": ("DownBlock2D",), "up_block_types": ("UpBlock2D",)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(denoising, "UNET", denoising.UNET | sizes | blocks)
        patch.setattr(denoising, "DRAFTS", (2, 4))
        yield patch


@pytest.fixture(scope="module")
def result(small) -> WholeResult:
    ticks: list[int] = []

    def progress(plan):
        ticks.append(plan.calls)
        assert 0 < plan.quick <= plan.seconds
        return lambda: ticks.append(1)

    made = denoising.bench_denoising(denoising.DenoisingOptions(2, 2, STEPS), "cpu", progress)
    assert len(ticks) - 1 == ticks[0]
    return made


def test_rows_count_serial_calls(result: WholeResult) -> None:
    (setting,) = result.settings
    plain, *ours = views.real(result, setting)
    assert setting == f"DDPM, {STEPS} steps" and plain.quality == {"calls": STEPS, "call_compression": 1}
    assert [row.options for row in ours] == [{"k": 2}, {"k": 4}]
    for row in (plain, *ours):
        calls = row.quality["calls"]
        assert row.units == 2 * STEPS and row.target_passes <= 2 * STEPS - 2
        assert row.quality["call_compression"] == pytest.approx(STEPS / calls, abs=1e-3)
        assert row.acceptance_length == pytest.approx((STEPS - 1) / (calls - 1), rel=0.05)
        assert row.rest_s >= 0 and row.verify_s > 0
    for row in ours:
        assert row.exactness == "lossless" and row.quality["calls"] < STEPS and 0 < row.quality["acceptance_rate"] <= 1


def test_plain_is_the_pipeline_as_diffusers_made_it(small) -> None:
    torch.manual_seed(0)
    pipe = denoising.DDPMPipeline(denoising.UNet2DModel(**denoising.UNET).eval(), denoising.DDPMScheduler())
    pipe.set_progress_bar_config(disable=True)
    stock = pipe(generator=torch.Generator().manual_seed(3), num_inference_steps=STEPS, output_type="np").images
    run = denoising.Sampler(pipe, STEPS)(3)
    assert torch.equal(run.units[0], torch.from_numpy(stock)) and run.report.method == "plain"
    assert not pipe.unet._forward_hooks and not pipe.unet._forward_pre_hooks


def test_it_is_shown_and_kept(result: WholeResult, tmp_path) -> None:
    result.save(tmp_path / "r.json")
    text = markdown.markdown(load_whole(tmp_path / "r.json"))
    for words in ("steps/s", "call compression", "acceptance rate", "random", "4 samples"):
        assert words in text
    run = CliRunner().invoke(build(), ["denoising", "--json", str(tmp_path / "none" / "r.json")])
    assert isinstance(run.exception, ValueError) and "there is no folder" in str(run.exception)
