"""The bench of `image` on a tiny pipeline: numbers are those of the raw repeats, pictures those of plain decoding."""

import statistics
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from mmspec.bench.race import Plan
from mmspec.kits.pictures.bench import CAPTIONS, HELD_OUT, SEEN
from mmspec.kits.pictures.models.captions import CaptionEncoder
from mmspec.kits.pictures.models.vq import LlamaGenVQ
from mmspec.report import views
from mmspec_image.models.llamagen import LlamaGenTransformer
from mmspec_image.pipeline import TextToImagePipeline
from tools.bench.__main__ import build
from tools.bench.image import loops as loops_module
from tools.bench.image import run as bench
from tools.bench.image.loops import LOOPS, StaticLayer, loops, plain_loop, step
from tools.bench.image.run import SETTINGS, CodeSubject
from tools.bench.limits import Floor
from tools.bench.pictures.contestants import Drawn, OwnMethod
from tools.bench.pictures.judge import Judge, charged, compression, foreground
from tools.bench.pictures.options import BenchOptions
from tools.bench.pictures.quality import Features, load_quality, write_quality
from tools.bench.pictures.run import PictureBench, bench_pictures
from tools.cards.cards import render_measured
from tools.cards.numbers import fill
from tools.report import markdown, whole
from tools.report.whole import Limits, WholeResult, load_whole
from tools.train.pictures.captioned import caption_tokenizer

GUIDED, FREE = (setting.name for setting in SETTINGS)


def test_blank_cells_are_background() -> None:
    picture = torch.ones(1, 3, 4, 4)
    picture[0, 2, 0, 3] = 0.0  # one channel of one pixel, in the cell of row 0, column 1
    picture[0, :, 3, 0] = 0.95  # nearly white
    assert foreground(picture, 2).tolist() == [[False, True, False, False]]


def test_a_pass_is_charged_to_the_code_that_it_drew_itself() -> None:
    after = [1, 4, 5, 8, 8]  # prefill; three passes; one more while other rows went on
    assert charged(after) == [3, 4, 7]
    shown = torch.tensor([True, True, False, True, False, True, False, False])
    # Shown after prefill: codes 1, 3, 5; charged to shown ones: the pass that drew code 3.
    assert compression([(after, shown)]) == 3.0
    assert compression([(after, ~shown)]) == 2.0  # codes 2, 4, 6, 7 in two passes
    assert compression([(after, torch.ones(8, dtype=torch.bool))]) == 7 / 3
    assert compression([(after, torch.zeros(8, dtype=torch.bool))]) is None
    assert compression([(list(range(1, 9)), shown)]) == compression([(list(range(1, 9)), ~shown)]) == 1.0, "plain"


def test_captions_are_many_and_each_is_there_once() -> None:
    assert len(set(CAPTIONS)) == 32 and set(CAPTIONS) == {*HELD_OUT, *SEEN}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    tokenizer = caption_tokenizer(list(CAPTIONS), 300, 8)
    sizes = dict(dim=32, n_layer=2, n_head=4, multiple_of=16, model_type="t2i", caption_dim=12, cls_token_num=8)
    transformer = LlamaGenTransformer(24, 4, **sizes)
    for weights in transformer.parameters():
        weights.data.copy_(torch.randn_like(weights) * (0.4 if weights.dim() > 1 else 1.0))
    one = dict(encoder_ch_mult=(1, 1), decoder_ch_mult=(1, 1))
    vq = LlamaGenVQ(24, ch=32, z_channels=32, num_res_blocks=1, **one)
    encoder = CaptionEncoder(len(tokenizer), 8, dim=12, layers=1, heads=2)
    made = tmp_path_factory.mktemp("bench") / "tiny"
    TextToImagePipeline(transformer, vq, encoder, tokenizer).save_pretrained(made)
    write_quality(made, Features(len(tokenizer), 8, (8, 16)), torch.rand(40, 3, 8, 8) * 2 - 1)
    return made


@pytest.fixture(scope="module")
def quick() -> Iterator[pytest.MonkeyPatch]:
    """Without what only takes time here: the profiler, the machine's floor, most windows."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bench, "WINDOWS", (3, 4, 20))
        patch.setattr("tools.bench.memory.peak_growth", lambda work, device: work() or 1000)
        patch.setattr(bench, "measure_floor", _floor)
        patch.setattr(loops_module, "compiled_step", lambda: step)  # compiling takes half a minute
        patch.setattr("mmspec.core.compile.launch.BACKEND", "eager")
        yield patch


def _floor(read: float, operations: float, device: str) -> Floor:
    return Floor(1e10, 1e11, read, operations)


@pytest.fixture(scope="module")
def result(folder: Path, quick: pytest.MonkeyPatch) -> WholeResult:
    calls: list[int] = []

    def progress(plan: Plan):
        calls.append(plan.calls)
        assert 0 < plan.quick < plan.seconds
        return lambda: calls.append(1)

    options = BenchOptions(prompts=2, repeats=2, window=3, batch=2, floors=1)
    made = bench_pictures(CodeSubject, ["gs-sjd", "sjd", "gsd"], options, "cpu", progress, str(folder))
    assert len(calls) - 1 == calls[0], "the progress bar knows how long it takes"
    return made


def test_every_setting_has_its_methods_and_the_sweep_is_of_one_method(result: WholeResult) -> None:
    guided = [row.method for row in views.real(result, GUIDED)]
    swept = ["gs-sjd, window 4", "gs-sjd, window 20"]
    assert guided == ["plain", "gs-sjd", "sjd", "gsd", *swept, "compiled plain", "compiled gs-sjd"]
    assert [row.method for row in views.real(result, FREE)] == ["plain", "gs-sjd", "sjd", "gsd"]
    assert {row.options["k"] for row in views.real(result, FREE)[1:]} == {3}
    assert result.row(GUIDED, "gs-sjd, window 20").options == {"k": 20}


def test_numbers_are_those_of_the_raw_repeats(result: WholeResult) -> None:
    for row in result.rows:
        ratios = [plain / own for plain, own in zip(row.plain_repeats_s, row.repeats_s, strict=True)]
        assert row.speedup == statistics.median(ratios) and row.units == (32 if row.batch == 1 else 16 * row.batch)
        assert sum(row.passes_by_nodes.values()) == row.target_passes
    plain, oracle = result.row(GUIDED, "plain"), result.row(GUIDED, "oracle", "oracle")
    assert plain.target_passes == 2 * 15 and plain.acceptance_length == 1 and plain.quality["step_compression"] == 1
    assert {row.peak_memory is None for row in views.real(result, GUIDED)[:4]} == {False}
    assert oracle.acceptance_length == 15 / 4 and not oracle.quality.keys() - {"same_as_plain"}
    for row in views.real(result, GUIDED):  # all codes of these pictures show something
        assert row.quality["foreground"] == 1.0
        assert row.quality["compression_foreground"] == row.quality["step_compression"]
        assert row.quality["step_compression"] == pytest.approx(row.acceptance_length, abs=1e-4)


def test_exact_methods_draw_plain_decodings_pictures_and_lossy_ones_say_what_they_altered(result: WholeResult) -> None:
    for setting in (GUIDED, FREE):
        plain = result.row(setting, "plain").quality
        for row in views.real(result, setting):
            same = {name: row.quality[name] == plain[name] for name in ("frechet", "caption_score", "foreground")}
            assert row.exactness != "invariant" or (row.quality["same_as_plain"] == 1 and all(same.values()))
            assert ("tv" in row.quality) == (row.exactness == "lossy")
        lossy = result.row(setting, "gsd").quality
        assert lossy["altered"] == pytest.approx(16 * lossy["tv"], rel=1e-3) and lossy["excess_acceptance"] >= 0


def test_the_floor_is_plain_decoding_with_other_seeds(result: WholeResult, folder: Path) -> None:
    plain = result.row(GUIDED, "plain").quality
    assert {name: len(values) for name, values in result.floor[GUIDED].items()} == {"frechet": 1, "caption_score": 1}
    assert result.floor[GUIDED]["frechet"] != [plain["frechet"]] and set(result.floor) == {GUIDED, FREE}
    made = _bench(folder, BenchOptions(prompts=2, repeats=2))
    with torch.no_grad():
        tasks = made.tasks(SETTINGS[0], range(4), shift=4)
        plainly = OwnMethod(made.subject.sampler(SETTINGS[0]))
        runs = [plainly(task) for task in tasks]  # alone: batches change no picture
        looks = made.judge.looks(made.judge.pictures(runs), CAPTIONS[:4])
    assert looks["frechet"] == result.floor[GUIDED]["frechet"][0] and tasks[0].seeds == (4,)


def _bench(folder: Path, options: BenchOptions) -> PictureBench:
    pipe = TextToImagePipeline.from_pretrained(folder)
    judge = Judge(pipe, load_quality(folder))
    return PictureBench(CodeSubject(pipe.transformer), judge, (), options, "cpu", "tiny", lambda: None)


def test_a_batch_is_its_rows(result: WholeResult) -> None:
    rows = [row for row in result.rows if row.batch == 2]
    assert [row.method for row in rows] == ["plain", "gs-sjd", "gs-sjd, window 4"]
    assert all(row.quality["same_as_alone"] == row.quality["same_as_plain"] == 1 for row in rows)
    assert all(len(row.alone_repeats_s) == len(row.repeats_s) for row in rows)


def test_plain_loops_draw_from_the_same_distribution(folder: Path, quick: pytest.MonkeyPatch) -> None:
    """The most likely codes, at a temperature near 0, are those of plain decoding; at 1 all loops draw the same."""
    made = _bench(folder, BenchOptions())
    for setting in (replace(setting, temperature=1e-4) for setting in SETTINGS):
        with torch.no_grad():
            task = made.tasks(setting, [0])[0]
            model = made.judge.pipe.transformer
            ours: Drawn = OwnMethod(made.subject.sampler(setting))(task)
            likeliest = [loop(task) for loop in loops(model, setting).values()]
            drawn = [loop(task).units[0] for loop in loops(model, replace(setting, temperature=1.0)).values()]
        assert len(likeliest) == 3 and all(torch.equal(run.units[0], ours.units[0]) for run in likeliest)
        assert all(run.report is None for run in likeliest)
        assert all(torch.equal(codes, drawn[0]) for codes in drawn)
    assert made.subject.tried(("sjd",), 12, whole=True) == {"sjd": {"method": "sjd", "k": 12}}


def test_the_static_loop_allocates_once_and_all_its_steps_have_one_shape(folder: Path) -> None:
    made = _bench(folder, BenchOptions())
    model, shapes, caches = made.judge.pipe.transformer, set(), set()

    def watched(model: Any, x: torch.Tensor, position: torch.Tensor, seen: torch.Tensor, layers: Any) -> torch.Tensor:
        shapes.add((tuple(x.shape), tuple(position.shape), tuple(seen.shape)))
        caches.add(tuple(layer.keys.data_ptr() for layer in layers))
        assert all(isinstance(layer, StaticLayer) and layer.keys.shape[2] == seen.shape[-1] for layer in layers)
        assert not seen[..., int(position) + 1 :].any() and seen[..., int(position)].all()
        return step(model, x, position, seen, layers)

    task = made.tasks(SETTINGS[0], [0])[0]
    plain_loop(model, task.condition, 2.0, 1.0, torch.Generator().manual_seed(0), static=True, then=watched)
    rows, slots = 2, 8 + model.cells - 1
    assert shapes == {((rows, 1, 32), (1, 1), (rows, 1, 1, slots))} and len(caches) == 1


@pytest.mark.slow  # compiling takes half a minute
def test_the_compiled_loop_draws_the_same_codes(folder: Path) -> None:
    made = _bench(folder, BenchOptions())
    for setting in SETTINGS:
        task = made.tasks(setting, [0])[0]
        drawn = [loop(task).units[0] for loop in loops(made.judge.pipe.transformer, setting).values()]
        assert len(drawn) == 3 and all(torch.equal(codes, drawn[0]) for codes in drawn)


def test_loops_of_ours_are_called_ours_and_the_fastest_is_what_counts(result: WholeResult) -> None:
    for setting in (GUIDED, FREE):
        assert views.peers_of(result, setting) == list(LOOPS)
        for name in LOOPS:
            peer = result.peers[f"{setting} / {name}"]
            assert peer.ours and peer.note.startswith("a plain loop of ours")
    assert not any(words in markdown.markdown(result) for words in ("LlamaGen's loop", "LlamaGen's own"))


def test_quick_tries_all_methods_and_leaves_out_what_is_no_speed(folder: Path, quick: pytest.MonkeyPatch) -> None:
    ticks: list[int] = []

    def progress(plan: Plan):
        ticks.append(plan.calls)
        assert plan.quick is None and "--quick" not in str(plan)
        return lambda: ticks.append(1)

    made = bench_pictures(CodeSubject, ["gs-sjd", "gsd"], BenchOptions(window=3).quick, "cpu", progress, str(folder))
    assert len(ticks) - 1 == ticks[0] and made.limits == Limits()
    assert [row.method for row in made.rows] == ["plain", "gs-sjd", "gsd"] * 2
    assert all(row.peak_memory is None and len(row.repeats_s) == 2 for row in made.rows)


def test_limits_are_of_passes_of_the_windows(result: WholeResult) -> None:
    assert "1" in result.limits.v_of_n and result.limits.v_of_n["1"] == 1 and set(result.limits.F_hw)
    assert set(result.limits.F_pipe) == {f"{GUIDED} / {row.method}" for row in views.real(result, GUIDED)[1:]}


def test_it_is_shown_carded_and_quoted(result: WholeResult, tmp_path: Path) -> None:
    text = markdown.markdown(result)
    for words in (
        "codes/s",
        "What the pictures are like",
        "Several pictures at a time",
        "4 captions",
        "Time, memory**",
    ):
        assert words in text
    for words in ("tokens/s", " text", "texts"):
        assert words not in text
    quality = whole.qualities(result)
    others = [row for row in quality.rows if row[1] == whole.OTHERS]
    assert [row[0] for row in others] == [GUIDED, FREE]
    assert others[0][quality.header.index("frechet")].count("–") == 1 and "⚠ lossy" in text
    assert "Frechet: distance to the training pictures" in quality.note
    result.save(tmp_path / "r.json")
    assert markdown.markdown(load_whole(tmp_path / "r.json")) == text and "codes/s" in render_measured(result, "tiny")
    quoted = fill(f'<!-- bench: r.json measure "{GUIDED}" gs-sjd step_compression --><!-- /bench -->', tmp_path)
    assert f">{result.row(GUIDED, 'gs-sjd').quality['step_compression']:.2f}<" in quoted
    with pytest.raises(ValueError, match="did you mean 'frechet'"):
        fill(f'<!-- bench: r.json measure "{GUIDED}" gs-sjd frechet_ --><!-- /bench -->', tmp_path)


def test_mistakes_teach(folder: Path, tmp_path: Path) -> None:
    for arguments, message in (
        (["--json", str(tmp_path / "none" / "r.json")], "there is no folder"),
        (["--prompts", "1", "--repeats", "1"], "two repeats or two prompts"),
        (["--model", str(folder), "--method", "gs-sdj"], "did you mean 'gs-sjd'"),
    ):
        run = CliRunner().invoke(build(), ["image", *arguments])
        assert isinstance(run.exception, ValueError) and message in str(run.exception)
