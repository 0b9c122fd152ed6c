"""The bench of `video` on tiny pipelines: raw numbers, a player's clock that is one, frames judged as published."""

import statistics
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.signal import convolve2d
from typer.testing import CliRunner

from mmspec.bench.race import Plan, Track
from mmspec.report import views
from mmspec.report.result import PLAIN
from mmspec_video.models.next_frame import NextFrameDiT
from mmspec_video.models.token_world import TokenWorldModel
from mmspec_video.pipeline import NextFramePipeline
from mmspec_video.recorded import CLIPS, STUDENT, TOKENS, recorded
from mmspec_video.recorded import DENOISED as WORLD
from mmspec_video.training.student import adaptable, adapter_of
from tests.support.worlds import tiny_vae, tiny_vq
from tools.bench.__main__ import build
from tools.bench.video import large, players
from tools.bench.video.clips import Task, places, reach
from tools.bench.video.contestants import ClipMaker, same_frames
from tools.bench.video.denoised import _measure_known, foreseen
from tools.bench.video.looks import fidelity, moved, psnr, ssim, turned_as_told
from tools.bench.video.model_bench import ModelBench
from tools.bench.video.players import Pace, PlayedRun, Player, adversarial, felt
from tools.bench.video.run import _tried, bench_video
from tools.bench.video.settings import (
    ADVERSARIAL,
    CODES,
    DENOISED,
    RECOMPUTING,
    RECORDED,
    REPEATING,
    STREAMING,
    BenchOptions,
    methods_for,
    playing,
)
from tools.report import markdown
from tools.report.whole import Limits, WholeResult, load_whole
from tools.train.video.world import ACTIONS

DELAYS = (0, 1)
BRANCHED = "branch-prediction, 2 branches"
DIT = {"channels": 8, "height": 4, "width": 4, "actions": 4, "patch": 2, "dim": 32, "depth": 2, "heads": 2}


def lively(model: Any, spread: float) -> Any:
    generator = torch.Generator().manual_seed(1)
    for weights in model.parameters():
        weights.data.copy_(torch.randn(weights.shape, generator=generator) * spread)
    return model.eval()


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two worlds of 8 × 8 pixels, and two clips of ten frames beside the one that is denoised."""
    place, draws = tmp_path_factory.mktemp("worlds"), np.random.default_rng(0)
    tokens = TokenWorldModel(10, 4, 4, 4, frames=5, dim=32, n_layer=1, n_head=2, multiple_of=16)
    NextFramePipeline(lively(NextFrameDiT(**DIT, frames=4, steps=2), 0.15), tiny_vae(), ACTIONS, 10).save_pretrained(
        place / WORLD
    )
    NextFramePipeline(lively(tokens, 0.6), tiny_vq(), ACTIONS, 10).save_pretrained(place / TOKENS)
    frames = draws.integers(0, 256, (2, 10, 8, 8, 3), dtype=np.uint8)
    np.savez(place / WORLD / CLIPS, frames=frames, actions=draws.integers(0, 4, (2, 9), dtype=np.uint8))
    return place / WORLD, place / TOKENS


@pytest.fixture(scope="module")
def quick() -> Iterator[None]:
    """Without what only takes time here: the profiler, most windows and delays."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tools.bench.video.settings.WINDOWS", (2, 6))
        patch.setattr("tools.bench.video.denoised.DELAYS", DELAYS)
        patch.setattr("tools.bench.memory.peak_growth", lambda work, device: work() and 1000)
        yield


@pytest.fixture(scope="module")
def result(folders: tuple[Path, Path], quick: None) -> WholeResult:
    pytest.importorskip("skimage")
    calls: list[int] = []

    def progress(plan: Plan):
        calls.append(plan.calls)
        assert 0 < plan.quick < plan.seconds
        return lambda: calls.append(1)

    options, models = BenchOptions(repeats=2, clips=1, frames=5), [str(folder) for folder in folders]
    made = bench_video(["branch-prediction", "frame-gs-sjd"], options, "cpu", progress, models)
    assert len(calls) - 1 == calls[0], "the progress bar knows how long it takes"
    return made


def test_quick_has_all_methods_and_players_and_no_looks(folders: tuple[Path, Path], quick: None) -> None:
    ticks: list[int] = []

    def progress(plan: Plan):
        ticks.append(plan.calls)
        assert plan.quick is None
        return lambda: ticks.append(1)

    options = replace(BenchOptions().quick, frames=3)
    made = bench_video(["branch-prediction", "frame-gs-sjd"], options, "cpu", progress, [str(f) for f in folders])
    assert len(ticks) - 1 == ticks[0] and made.limits == Limits()
    played = [playing(trace, delay) for trace in (REPEATING, RECORDED, ADVERSARIAL) for delay in DELAYS]
    assert made.settings == [DENOISED, *played, CODES]
    assert all(row.peak_memory is None and "psnr_1" not in row.quality for row in made.rows)


def test_rows_are_plain_the_methods_and_what_they_are_measured_against(result: WholeResult) -> None:
    played = [playing(trace, delay) for trace in (REPEATING, RECORDED, ADVERSARIAL) for delay in DELAYS]
    assert result.settings == [DENOISED, *played, CODES]
    listed = {setting: [row.method for row in views.real(result, setting)] for setting in result.settings}
    assert listed[DENOISED] == [PLAIN, STREAMING, "branch-prediction"]
    assert all(listed[setting] == [PLAIN, "branch-prediction", BRANCHED] for setting in played)
    assert listed[CODES] == [PLAIN, "frame-gs-sjd, window 2", "frame-gs-sjd, window 6"]
    assert result.row(played[0], BRANCHED).options == {"k": 1, "branches": 2}
    assert [row.method for row in result.rows if row.exactness == "lossy"] == [STREAMING]
    assert views.peers_of(result, DENOISED) == [RECOMPUTING] and len(result.peers) == 1
    assert result.peers[f"{DENOISED} / {RECOMPUTING}"].ours, "no measure of anything where plain decoding is faster"


def test_numbers_are_those_of_the_raw_repeats(result: WholeResult) -> None:
    for row in result.rows:
        ratios = [plain / own for plain, own in zip(row.plain_repeats_s, row.repeats_s, strict=True)]
        assert row.speedup == statistics.median(ratios) and len(ratios) == 2 and row.units == 5
        assert row.exactness == "lossy" or row.quality["same_as_plain"] == 1, (row.setting, row.method)
        assert row.verify_s > 0
    plain, wide = (result.row(CODES, name) for name in (PLAIN, "frame-gs-sjd, window 6"))
    assert plain.quality["step_compression"] == 1 and wide.quality["step_compression"] > 1.2
    assert wide.target_passes < plain.target_passes and wide.draft_s > 0
    assert result.row(DENOISED, STREAMING).quality["same_as_plain"] < 1
    assert result.limits.measured[f"{DENOISED}, largest difference between kept keys and recomputing"] < 1e-3
    assert set(result.limits.F_pipe) == {f"{CODES} / frame-gs-sjd, window {k}" for k in (2, 6)}


def test_a_guess_is_made_or_not_and_an_adversary_is_never_guessed(result: WholeResult) -> None:
    for delay in DELAYS:
        quality = result.row(playing(ADVERSARIAL, delay), "branch-prediction").quality
        assert quality["hit_rate"] == 0 and "hit_of_plain" not in quality and quality["miss_of_plain"] > 0
    for trace in (REPEATING, RECORDED, ADVERSARIAL):
        quality = result.row(playing(trace, 0), "branch-prediction").quality
        assert quality["hit_rate"] == quality["discarded"] == 0, "nobody who answers at once is foreseen"
        assert result.row(playing(trace, 1), PLAIN).quality["p50_of_plain"] == 1


def test_frames_of_all_are_compared_with_the_simulators(result: WholeResult, folders: tuple[Path, Path]) -> None:
    for setting, exact in ((DENOISED, "branch-prediction"), (CODES, "frame-gs-sjd, window 6")):
        plain, own = result.row(setting, PLAIN).quality, result.row(setting, exact).quality
        names = [f"{what}_{n}" for what in ("psnr", "ssim") for n in (1, 4)]
        assert [own[name] for name in names] == pytest.approx([plain[name] for name in names])
        assert "psnr_16" not in plain, "the clips are too short for that"
        references = [name for name in result.limits.measured if name.startswith(f"{setting}, psnr_1 of ")]
        assert len(references) == 2
    clips = recorded(folders)
    last, first = clips.frames[:, 2], clips.frames[:, 3]
    repeated = psnr(last, first).mean()
    assert result.limits.measured[f"{DENOISED}, psnr_1 of the last frame repeated"] == pytest.approx(
        float(repeated), 1e-4
    )


def test_lossy_methods_say_what_they_lose(folders: tuple[Path, Path], quick: None) -> None:
    pytest.importorskip("skimage")
    pipe = NextFramePipeline.from_pretrained(folders[0])
    student = adapter_of(adaptable(pipe.transformer, 2), 1)
    for weights in student.parameters():
        weights.data.normal_(std=0.05, generator=torch.Generator().manual_seed(2))
    student.half().save_pretrained(folders[0] / STUDENT)
    options = BenchOptions(repeats=1, clips=1, frames=4)
    bench = ModelBench(pipe, recorded(folders), methods_for(pipe.transformer), options, "cpu")
    ways, lacking = _tried(bench)
    assert {"nfd", "student", "branch-prediction"} <= set(bench.methods)
    assert not lacking and "frame-gs-sjd" not in ways, "a window over codes wants codes"
    with torch.no_grad():
        _measure_known(
            bench, {name: ways[name] | ({"tolerance": 9.0} if name == "student" else {}) for name in bench.methods}
        )
    rows = {row.method: row for row in bench.rows}
    for name in ("nfd", "student"):
        assert rows[name].exactness == "lossy" and rows[name].quality["same_as_plain"] < 1
        assert rows[name].quality["altered"] > 0 and rows[name].quality["psnr_4"] != rows[PLAIN].quality["psnr_4"]
    assert rows["nfd"].options["k"] == 3 and rows["student"].quality["altered"] == 1
    assert "altered" not in rows["branch-prediction"].quality


def test_it_is_shown_and_kept(result: WholeResult, tmp_path: Path) -> None:
    text = markdown.markdown(result)
    for words in ("frames/s", "× recomputing", "⚠ lossy", "hit rate", "p95 ms", "psnr 4", "step compression", "a GPU"):
        assert words in text, words
    result.save(tmp_path / "r.json")
    assert markdown.markdown(load_whole(tmp_path / "r.json")) == text


class Clock:
    """Every pass of a model takes one second, and nothing else takes any."""

    def __init__(self, model: Any) -> None:
        self.now = 0.0
        model.register_forward_pre_hook(lambda *_: self._tick())

    def _tick(self) -> None:
        self.now += 1

    def perf_counter(self) -> float:
        return self.now


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A model whose window does not slide: a frame is a pass over the last one's keys, and two steps."""
    model = lively(NextFrameDiT(**DIT, frames=12, steps=2), 0.15)
    monkeypatch.setattr(players, "time", Clock(model))
    return model


def walk(actions: list[int]) -> Task:
    g = torch.Generator().manual_seed(0)
    first = torch.randn(1, 2, 8, 4, 4, generator=g)
    return Task(first, torch.tensor([[1]]), torch.tensor([actions]), torch.empty(0), torch.empty(0), 3)


def player(model: Any, delay: float, pace: float = 3.0, **how: Any) -> Player:
    return Player(ClipMaker(model, {"method": PLAIN} | how), delay, Pace(pace))


AHEAD: dict[str, Any] = {"method": "branch-prediction", "k": 1}


@torch.no_grad()
def test_plain_players_wait_for_every_frame_and_set_the_pace(world: Any) -> None:
    pace = Pace()
    run = Player(ClipMaker(world), 1, pace, leads=True)(walk([1, 1, 2, 0]))
    assert run.waits == [3, 3, 3] and run.hits == [False] * 3 and run.discarded == 0
    assert pace.seconds == 3 and run.seconds == 12 and run.units[0].shape == (4, 8, 4, 4)


@torch.no_grad()
def test_a_guess_that_was_made_in_time_costs_no_wait(world: Any) -> None:
    task = walk([1, 1, 1, 2, 1])
    run, plain = player(world, 1, **AHEAD)(task), player(world, 1)(task)
    assert run.hits == [True, True, False, True] and same_frames(run.units[0], plain.units[0]) == 1
    assert [wait for wait, hit in zip(run.waits, run.hits, strict=True) if hit] == [0, 0, 0]
    assert 2 <= run.waits[2] <= 3 and run.discarded == 1


@torch.no_grad()
def test_who_answers_during_a_pass_waits_for_its_end(world: Any) -> None:
    run = player(world, 0.4, **AHEAD)(walk([1, 1, 1]))  # answers 1.2 s after every frame, in the second pass
    assert run.hits == [False, False] and run.discarded == 0
    assert all(wait % 1 == pytest.approx(0.8) and wait > 2 for wait in run.waits)


@torch.no_grad()
def test_behind_a_full_window_too_a_guess_takes_no_longer_than_a_frame(monkeypatch: pytest.MonkeyPatch) -> None:
    model = lively(NextFrameDiT(**DIT, frames=4, steps=2), 0.15)
    monkeypatch.setattr(players, "time", Clock(model))
    task, pace = walk([1] * 6), Pace()
    plain = Player(ClipMaker(model), 0, pace, leads=True)(task)
    assert all(player(model, 1, pace.seconds, **AHEAD)(task).hits)
    assert player(model, 0, pace.seconds, **AHEAD)(task).waits == plain.waits


@torch.no_grad()
def test_an_adversary_does_what_was_not_guessed(world: Any) -> None:
    task = walk([1] * 8)
    others = {name: ClipMaker(world, {"method": name, "k": 1}) for name in ("nfd", "branch-prediction")}
    assert foreseen(others, world).how == AHEAD
    trace = adversarial(foreseen(others, world), task)
    assert trace.shape == task.actions.shape and trace[0, 0] == 1
    run = player(world, 2, **AHEAD)(replace(task, actions=trace))
    assert not any(run.hits) and run.discarded == 7


def test_what_a_player_felt() -> None:
    def track(*runs: PlayedRun) -> Track:
        return Track([[run] for run in runs])

    frames = [torch.zeros(5)]
    plain = track(PlayedRun(1, frames, None, (2.0, 2.0, 4.0, 2.0), (False,) * 4, 0))
    ours = track(PlayedRun(1, frames, None, (0.1, 0.3, 2.2, 0.1), (True, True, False, True), 1))
    assert felt(ours, plain) == {
        "p50_ms": 300,
        "p95_ms": 2200,
        "p50_of_plain": 0.15,
        "p95_of_plain": 0.55,
        "hit_rate": 0.75,
        "discarded": 0.2,
        "hit_of_plain": 0.05,
        "miss_of_plain": 1.1,
    }


def test_psnr_is_the_published_one() -> None:
    truth = torch.rand(2, 3, 13, 15) * 1.6 - 1
    assert psnr(truth + 0.2, truth) == pytest.approx([20, 20], abs=1e-3)
    assert (psnr(truth, truth) > 58).all()


def test_ssim_is_the_published_one() -> None:
    pytest.importorskip("skimage")
    g = torch.Generator().manual_seed(0)
    truth = torch.rand(2, 3, 13, 15, generator=g) * 1.6 - 1
    assert ssim(truth, truth) == pytest.approx([1, 1], abs=1e-4)
    made = (truth + 0.3 * torch.randn(truth.shape, generator=g)).clamp(-1, 1)
    at = np.arange(11) - 5
    bell = np.exp(-(at**2) / 4.5)
    window = np.outer(bell, bell) / bell.sum() ** 2
    indices = []
    for x, y in zip((made[0].double().numpy() + 1) / 2, (truth[0].double().numpy() + 1) / 2, strict=True):
        mx, my, xx, yy, xy = (convolve2d(z, window, "valid") for z in (x, y, x * x, y * y, x * y))
        top = (2 * mx * my + 1e-4) * (2 * (xy - mx * my) + 9e-4)
        indices.append(top / ((mx**2 + my**2 + 1e-4) * (xx - mx**2 + yy - my**2 + 9e-4)))
    assert float(ssim(made, truth)[0]) == pytest.approx(np.mean(indices), abs=1e-4) and np.mean(indices) < 0.9


def test_without_scikit_image_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "skimage.metrics", None)
    with pytest.raises(ValueError, match=r"SSIM needs scikit-image, .* pip install -e '\.\[tools\]'"):
        ssim(torch.zeros(1, 3, 12, 12), torch.zeros(1, 3, 12, 12))


def test_each_distance_ahead_is_that_frames() -> None:
    pytest.importorskip("skimage")
    truth = torch.rand(1, 5, 3, 12, 12) * 2 - 1
    made = truth.clone()
    made[:, 3] = -made[:, 3]
    found = fidelity(made, truth, [1, 4, 5])
    assert (
        found["psnr_1"] == found["psnr_5"] > 58 > 20 > found["psnr_4"] and found["ssim_4"] < 0 < 0.9 < found["ssim_5"]
    )


def test_frames_move_as_told_or_do_not() -> None:
    """A wall of stripes, and a plain one, which does not show that it moves."""
    stripes = torch.rand(3, 1, 80, generator=torch.Generator().manual_seed(0)).expand(3, 8, 80)
    steps = (0, 6, 12, 9, 9)  # twice to the right, once to the left, not at all
    frames = torch.stack([stripes[..., 30 - at : 70 - at] for at in steps])
    by, shows = moved(frames[:-1], frames[1:])
    assert by.tolist() == [6, 6, -3, 0] and shows.tolist() == [True, True, True, False]
    names = ["on", "right", "left"]
    for actions, share in (([2, 2, 1, 0], 1.0), ([1, 2, 1, 1], 2 / 3), ([0, 1, 0, 0], 0.0), ([0, 0, 0, 2], None)):
        assert turned_as_told(frames, torch.tensor(actions), names) == (share and pytest.approx(share)), actions
    both = torch.stack([frames, torch.full_like(frames, 0.5)])
    assert turned_as_told(both, torch.tensor([[2, 1, 1, 0], [2, 2, 2, 2]]), names) == pytest.approx(2 / 3)


def test_clips_end_where_they_end(folders: tuple[Path, Path]) -> None:
    clips = recorded([folders[1]])
    assert clips.frames.shape == (2, 10, 3, 8, 8) and clips.actions.shape == (2, 9), "those beside the other model"
    assert reach(clips, 3) == [1, 4] and reach(clips, 7) == [1, 4]
    assert places(clips, 3) == [(0, 0), (1, 0)]
    with pytest.raises(ValueError, match=r"no recorded clips \(clips.npz\) beside nowhere"):
        recorded([folders[0].parent / "other" / "nowhere"])


def test_methods_are_those_of_the_plugin_that_fit(world: Any) -> None:
    assert "branch-prediction" in methods_for(world) and PLAIN not in methods_for(world)
    coded = methods_for(TokenWorldModel(10, 4, 2, 2, dim=32, n_layer=1, n_head=2))
    assert "frame-gs-sjd" in coded and not {"branch-prediction", "gs-sjd", PLAIN} & set(coded)


def test_a_large_model_of_random_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large, "REPEATS", 1)
    shape = large.FRAMES | {"height": 4, "width": 4, "frames": 3}
    rows = large.large("cpu", lambda: None, "tiny", shape, new=3)
    assert [(row.method, row.units, row.setting) for row in rows] == [
        (PLAIN, 3, large.SETTING),
        (STREAMING, 3, large.SETTING),
    ]
    assert all(row.tokens_per_second > 0 for row in rows)
    with torch.device("meta"):
        full = NextFrameDiT.of_size(large.FRAME_SIZE, **large.FRAMES)
    assert 290e6 < sum(weights.numel() for weights in full.parameters()) < 330e6 and full.sampler.steps == 4


def test_mistakes_teach(folders: tuple[Path, Path], tmp_path: Path) -> None:
    world = str(folders[0])
    for arguments, message in (
        (["--json", str(tmp_path / "none" / "r.json")], "there is no folder"),
        (["--model", world, "--method", "branch-predicton"], "did you mean 'branch-prediction'"),
        (["--model", world, "--device", "nowhere"], "nowhere"),
    ):
        run = CliRunner().invoke(build(), ["video", *arguments])
        assert run.exception is not None and message in str(run.exception), run.output
