"""The bench of `continuous` on a tiny pipeline: raw numbers, the head's own clock, baselines that are what they say."""

import statistics
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from diffusers import AutoencoderKL
from typer.testing import CliRunner

from mmspec.bench.race import Plan
from mmspec.bench.timing import pass_seconds
from mmspec.core.distributions import Schedule
from mmspec.kits.pictures.bench import CAPTIONS
from mmspec.kits.pictures.models.captions import CaptionEncoder
from mmspec.report import views
from mmspec_continuous.pipeline import ContinuousTextToImagePipeline, mark
from mmspec_continuous.targets.continuous import ContinuousTarget
from tests.support.examples.continuous import captions, tiny
from tools.bench.__main__ import build
from tools.bench.continuous import run as bench
from tools.bench.continuous.head import HeadClock, HeadTimedSampler, TargetWithHead
from tools.bench.continuous.run import NOISELESS, SETTINGS, TEMPERED, baselines, methods_for
from tools.bench.limits import Floor
from tools.bench.pictures.contestants import OwnMethod
from tools.bench.pictures.options import BenchOptions
from tools.bench.pictures.quality import Features, write_quality
from tools.bench.pictures.run import bench_pictures
from tools.bench.pictures.tasks import joined, tasks_of
from tools.report import markdown
from tools.report.whole import Limits, WholeResult, load_whole
from tools.train.pictures.captioned import caption_tokenizer
from tools.train.pictures.latents import measure, small_kl

GUIDED, FREE = (setting.name for setting in SETTINGS)
HALF, NOISELESS_ROW = "plain, 2 head steps", "plain, noiseless last step"


@pytest.fixture(scope="module")
def small_vae() -> AutoencoderKL:
    """An autoencoder with 4 numbers per token and 2 × 2 pixels per token."""
    torch.manual_seed(2)
    vae = small_kl(4, 8, (8, 8), groups=4).eval()
    measure(vae, 3 + 2 * torch.randn(50, 16, 4))
    return vae


def made(small_vae, **sizes) -> ContinuousTextToImagePipeline:
    torch.manual_seed(0)
    tokenizer = caption_tokenizer(list(CAPTIONS), 300, 8)
    given = dict(token_dim=4, grid=4, caption_dim=12, cls_token_num=8, latents=mark(small_vae))
    encoder = CaptionEncoder(len(tokenizer), 8, dim=12, layers=1, heads=2)
    return ContinuousTextToImagePipeline(tiny(**given, **sizes), small_vae, encoder, tokenizer)


@pytest.fixture(scope="module")
def folder(small_vae, tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("bench") / "tiny"
    pipe = made(small_vae, steps=4)
    pipe.save_pretrained(place)
    write_quality(place, Features(len(pipe.tokenizer), 8, (8, 16)), torch.rand(40, 3, 8, 8) * 2 - 1)
    return place


@pytest.fixture(scope="module")
def quick() -> Iterator[pytest.MonkeyPatch]:
    """Without what only takes time here: the profiler, the machine's floor, most windows."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bench, "WINDOWS", (3, 8))
        patch.setattr("tools.bench.memory.peak_growth", lambda work, device: work() or 1000)
        patch.setattr(bench, "measure_floor", lambda read, operations, device: Floor(1e10, 1e11, read, operations))
        yield patch


@pytest.fixture(scope="module")
def result(folder: Path, quick: pytest.MonkeyPatch) -> WholeResult:
    calls: list[int] = []

    def progress(plan: Plan):
        calls.append(plan.calls)
        assert 0 < plan.quick < plan.seconds
        return lambda: calls.append(1)

    options = BenchOptions(prompts=2, repeats=2, window=3, batch=2, floors=1)
    made = bench_pictures(bench.TokenSubject, ["reflection", "causal-sets"], options, "cpu", progress, str(folder))
    assert len(calls) - 1 == calls[0], "the progress bar knows how long it takes"
    return made


def test_quick_tries_all_methods_and_leaves_out_what_is_no_speed(folder: Path, quick: pytest.MonkeyPatch) -> None:
    ticks: list[int] = []

    def progress(plan: Plan):
        ticks.append(plan.calls)
        assert plan.quick is None
        return lambda: ticks.append(1)

    made = bench_pictures(
        bench.TokenSubject, ["reflection"], BenchOptions(window=3).quick, "cpu", progress, str(folder)
    )
    assert len(ticks) - 1 == ticks[0] and made.limits == Limits()
    assert [row.method for row in made.rows] == ["plain", "reflection"] * 2
    assert all(row.peak_memory is None for row in made.rows)


def test_rows_are_plain_the_methods_the_sweep_and_the_baselines(result: WholeResult) -> None:
    guided = [row.method for row in views.real(result, GUIDED)]
    ours = ["plain", "reflection", "causal-sets", "reflection, window 8", TEMPERED]
    assert guided == [*ours, HALF, NOISELESS_ROW]
    assert [row.method for row in views.real(result, FREE)] == ours[:3]
    assert result.row(GUIDED, TEMPERED).options == {"k": 3, "rule": "tempered"}
    assert result.row(GUIDED, "reflection, window 8").options == {"k": 8}
    assert result.row(GUIDED, HALF).options == {"steps": 2}
    assert result.row(GUIDED, NOISELESS_ROW).options == {"sigma_0": NOISELESS}


def test_what_is_not_the_targets_distribution_says_so(result: WholeResult) -> None:
    promised = {row.method: row.exactness for row in views.real(result, GUIDED)}
    lossy = {name for name, exactness in promised.items() if exactness == "lossy"}
    assert lossy == {"causal-sets", TEMPERED, HALF, NOISELESS_ROW}
    assert "tv" in result.row(GUIDED, TEMPERED).quality and "tv" not in result.row(GUIDED, "reflection").quality
    assert promised["reflection"] == promised["plain"] == "lossless"
    assert all("same_as_plain" not in row.quality for row in result.rows), "the distribution is promised, not the path"


def test_numbers_are_those_of_the_raw_repeats(result: WholeResult) -> None:
    for row in result.rows:
        ratios = [plain / own for plain, own in zip(row.plain_repeats_s, row.repeats_s, strict=True)]
        assert row.speedup == statistics.median(ratios) and row.units == (32 if row.batch == 1 else 16 * row.batch)
        assert sum(row.passes_by_nodes.values()) == row.target_passes
    plain = result.row(GUIDED, "plain")
    assert plain.target_passes == 2 * 15 and plain.acceptance_length == 1 and plain.quality["step_compression"] == 1
    for name in ("reflection", "reflection, window 8"):
        row = result.row(GUIDED, name)
        assert row.quality["step_compression"] == pytest.approx(row.acceptance_length, rel=0.2)
        assert row.acceptance_length > 1 and row.quality["frechet"] > 0
    for setting in (GUIDED, FREE):
        assert {name: len(values) for name, values in result.floor[setting].items()} == {
            "frechet": 1,
            "caption_score": 1,
        }


def test_the_head_is_timed_apart_from_the_backbone(result: WholeResult) -> None:
    for row in views.real(result, GUIDED):
        head, backbone = row.quality["head_ms"] / 1000, row.quality["backbone_ms"] / 1000
        assert head > 0 and backbone > 0
        steps, passes = row.options.get("steps", 4), 15 / row.quality["step_compression"]
        assert row.quality["head_calls"] == pytest.approx(steps * (passes + 1), rel=1e-3), row.method
        # Two parts of the same calls: four pictures a method, two a repeat.
        assert 4 * (head + backbone) < sum(row.repeats_s)
    limits = result.limits.measured  # what is in them, the test of a pass alone says; not which of them was faster
    assert min(limits["seconds_of_one_node_without_the_head"], limits["seconds_of_one_node"]) > 0


@torch.no_grad()
def test_the_clock_counts_every_call_of_the_head_and_changes_nothing(folder: Path, monkeypatch) -> None:
    pipe = ContinuousTextToImagePipeline.from_pretrained(folder)
    calls: list[int] = []
    measure = HeadClock.measure

    def counted(self, mean, x, step, condition):
        calls.append(step)
        return measure(self, mean, x, step, condition)

    monkeypatch.setattr(HeadClock, "measure", counted)
    task = tasks_of(pipe, 3.0, [0], 5)[0]
    run = OwnMethod(HeadTimedSampler(pipe.transformer))(task)
    assert len(calls) == run.calls == 16 * 4 and 0 < run.head < run.seconds
    pipe.use("plain").set_progress_bar_config(disable=True)
    assert torch.equal(run.units[0], pipe(CAPTIONS[0], guidance_scale=3.0, seed=[5]).tokens[0].flatten(0, 1))


def test_a_pass_alone_runs_no_head_and_a_whole_one_does(monkeypatch) -> None:
    draws: list[int] = []
    monkeypatch.setattr("mmspec_continuous.targets.continuous.RunningHead.mean", lambda *a: draws.append(1) or a[1])
    target, sizes = ContinuousTarget(tiny(steps=4)), (1, 3)
    pass_seconds(target, captions([1], 1.5), sizes, repeats=1)
    assert not draws
    pass_seconds(TargetWithHead(target), captions([1], 1.5), sizes, repeats=1)
    assert len(draws) == 4 * len(sizes) * 4, "once a step, all nodes together; three passes are not counted"


def test_baselines_are_the_same_weights_in_another_chain() -> None:
    model = tiny(steps=6)
    near = baselines(model)
    assert list(near) == ["plain, 3 head steps", NOISELESS_ROW]
    coarse, head = near["plain, 3 head steps"].model.token_head, model.token_head
    torch.testing.assert_close(coarse.alpha_bar, head.alpha_bar[::2])
    told, x = head.project(torch.randn(5, 16)), torch.randn(5, 2)
    for step in range(3):
        torch.testing.assert_close(coarse(x, step, told), head(x, 2 * step, told))
    noiseless = near[NOISELESS_ROW].model.token_head
    assert Schedule.of(noiseless).sigmas[:-1] == Schedule.of(head).sigmas[:-1]
    assert noiseless.sigmas[-1] == pytest.approx(NOISELESS)
    assert list(baselines(tiny(steps=1))) == [NOISELESS_ROW]


def test_the_noiseless_last_step_is_the_mean_of_the_noisy_one() -> None:
    model = tiny()
    near = baselines(model)[NOISELESS_ROW].model
    task = type("Task", (), dict(condition=captions([1], 1.5), seeds=(3,)))
    models = {"noisy": model, "noiseless": near}
    first = {name: OwnMethod(HeadTimedSampler(m))(task).units[0][0] for name, m in models.items()}
    apart = (first["noisy"] - first["noiseless"]).abs()
    assert 0 < apart.max() < 6 * 0.3, "the first token differs by one draw of sigma_0"


def test_methods_are_those_of_the_plugin_that_need_no_draft_model() -> None:
    found = methods_for(tiny())
    assert found[0] == "reflection" and "causal-sets" in found
    assert not {"draft-reflection", "cspd", "plain", "speculative-denoising"} & set(found)
    assert not {"mc-sjd", "sjd"} & set(found), "another plugin's"


def test_a_batch_is_its_rows(result: WholeResult, folder: Path) -> None:
    rows = [row for row in result.rows if row.batch == 2]
    assert [row.method for row in rows] == ["plain", "reflection", "reflection, window 8"]
    assert all(row.quality["same_as_alone"] == 1 and row.alone_repeats_s for row in rows)
    pipe = ContinuousTextToImagePipeline.from_pretrained(folder)
    together = joined(tasks_of(pipe, 3.0, [0, 1], 0))
    assert together.condition.scale == 3.0 and len(together.condition.given) == 2


def test_it_is_shown_and_kept(result: WholeResult, tmp_path: Path) -> None:
    text = markdown.markdown(result)
    for words in ("tokens/s", "head ms", "backbone ms", "What the pictures are like", "⚠ lossy", "sigma_0 = 0.3"):
        assert words in text
    result.save(tmp_path / "r.json")
    assert markdown.markdown(load_whole(tmp_path / "r.json")) == text
    ours = ("reflection", "causal-sets", "reflection, window 8", TEMPERED)
    assert set(result.limits.F_pipe) == {f"{GUIDED} / {name}" for name in ours}
    assert result.limits.v_of_n["1"] == 1


def test_mistakes_teach(folder: Path, small_vae, tmp_path: Path) -> None:
    made(small_vae, head="gaussian-mixture", components=2).save_pretrained(tmp_path / "mixture")
    for arguments, message in (
        (["--json", str(tmp_path / "none" / "r.json")], "there is no folder"),
        (["--prompts", "1", "--repeats", "1"], "two repeats or two prompts"),
        (["--model", str(folder), "--method", "reflektion"], "did you mean 'reflection'"),
        (["--model", str(tmp_path / "mixture")], "a denoising head and a null caption"),
    ):
        run = CliRunner().invoke(build(), ["continuous", *arguments])
        assert isinstance(run.exception, ValueError) and message in str(run.exception), run.output
