"""`mmspec bench image`, `continuous` and `video`: one race for all of them, on the user's own prompts and pipelines."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast
from typer.testing import CliRunner

from mmspec.bench.pipelines import Size, bench_pipeline
from mmspec.bench.race import Plan
from mmspec.cli.app import build
from mmspec.kits.pictures.bench import CAPTIONS, HELD_OUT, SEEN, pictures
from mmspec.kits.pictures.models.captions import CaptionEncoder
from mmspec.kits.pictures.models.vq import LlamaGenVQ
from mmspec.report.result import Result
from mmspec.report.trust import load_result
from mmspec_continuous.pipeline import ContinuousTextToImagePipeline, mark
from mmspec_image.models.llamagen import LlamaGenTransformer
from mmspec_image.pipeline import TextToImagePipeline
from mmspec_video.models.token_world import TokenWorldModel
from mmspec_video.pipeline import NextFramePipeline
from mmspec_video.recorded import CLIPS
from tests.support.examples.continuous import tiny
from tests.support.worlds import tiny_vq
from tools.report import markdown
from tools.train.pictures.latents import measure, small_kl

WORDS = ["<pad>", "<unk>", "red", "heart", "cat"]
ACTIONS = ("forward", "back", "left", "right")


def lively(model: Any, spread: float) -> Any:
    generator = torch.Generator().manual_seed(1)
    for weights in model.parameters():
        weights.data.copy_(torch.randn(weights.shape, generator=generator) * spread)
    return model.eval()


@pytest.fixture(scope="module")
def words() -> PreTrainedTokenizerFast:
    known = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<unk>"))
    known.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=known, pad_token="<pad>", unk_token="<unk>", padding_side="left", model_max_length=6
    )


@pytest.fixture(scope="module")
def drawer(words: PreTrainedTokenizerFast, tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    sizes = dict(dim=32, n_layer=1, n_head=2, multiple_of=16, model_type="t2i", caption_dim=12, cls_token_num=6)
    transformer = lively(LlamaGenTransformer(24, 4, **sizes), 0.4)
    vq = LlamaGenVQ(24, ch=32, encoder_ch_mult=(1, 1), decoder_ch_mult=(1, 1), z_channels=32, num_res_blocks=1)
    folder = tmp_path_factory.mktemp("bench") / "drawer"
    encoder = CaptionEncoder(len(WORDS), 6, dim=12, layers=1, heads=2)
    TextToImagePipeline(transformer, vq, encoder, words).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tokens = TokenWorldModel(10, 4, 4, 4, frames=5, dim=32, n_layer=1, n_head=2, multiple_of=16)
    folder, draws = tmp_path_factory.mktemp("bench") / "world", np.random.default_rng(0)
    NextFramePipeline(lively(tokens, 0.6), tiny_vq(), ACTIONS, 10).save_pretrained(folder)
    frames = draws.integers(0, 256, (2, 7, 8, 8, 3), dtype=np.uint8)
    np.savez(folder / CLIPS, frames=frames, actions=draws.integers(0, 4, (2, 6), dtype=np.uint8))
    return folder


def counting(plans: list[Plan], calls: list[int]) -> Callable[[Plan], Callable[[], None]]:
    def progress(plan: Plan) -> Callable[[], None]:
        plans.append(plan)
        return lambda: calls.append(1)

    return progress


def test_every_method_that_fits_takes_turns_with_plain_decoding(drawer: Path, tmp_path: Path) -> None:
    plans, calls = list[Plan](), list[int]()
    size = Size(repeats=2, window=3, seed=5)
    result = bench_pipeline(
        pictures("image", "code"), str(drawer), None, ["red heart"], size, "cpu", counting(plans, calls)
    )
    names = [row.method for row in result.rows]
    assert names[0] == "plain" and {"gs-sjd", "sjd", "gsd"} <= set(names)
    assert len(calls) == plans[0].calls == len(names) * 3 and plans[0].quick == pytest.approx(plans[0].seconds)
    for row in result.rows:
        assert row.units == 16 and len(row.repeats_s) == 2 and (row.options == {"k": 3}) == (row.method != "plain")
        assert row.exactness != "invariant" or row.quality == {"same_as_plain": 1}
        assert ("tv" in row.quality) == (row.exactness == "lossy")
    result.save(tmp_path / "r.json")
    assert markdown.markdown(load_result(tmp_path / "r.json")) == markdown.markdown(result)
    assert "codes/s" in markdown.markdown(result) and result.prompts == {"prompts": 1}


def test_continuous_units_are_not_compared(words: PreTrainedTokenizerFast, tmp_path: Path) -> None:
    torch.manual_seed(2)
    vae = small_kl(4, 8, (8, 8), groups=4).eval()
    measure(vae, torch.randn(50, 16, 4))
    sizes = dict(token_dim=4, grid=4, caption_dim=12, cls_token_num=6, latents=mark(vae))
    encoder = CaptionEncoder(len(WORDS), 6, dim=12, layers=1, heads=2)
    ContinuousTextToImagePipeline(tiny(**sizes), vae, encoder, words).save_pretrained(tmp_path)
    modality, size = pictures("continuous", "token"), Size(repeats=1, window=4, seed=0)
    progress = counting([], [])
    result = bench_pipeline(modality, str(tmp_path), ["reflection"], ["red heart"], size, "cpu", progress)
    plain, drafted = result.rows
    assert plain.units == drafted.units == 16 and drafted.exactness == "lossless" and drafted.acceptance_length > 1
    assert not plain.quality and not drafted.quality, "the distribution is promised, not the path"


def made(*arguments: str) -> Any:
    return CliRunner().invoke(build(), ["bench", *arguments], env={"COLUMNS": "200"})


def test_the_command_takes_ones_own_prompts(drawer: Path, tmp_path: Path) -> None:
    own, file = tmp_path / "own.jsonl", tmp_path / "r.json"
    own.write_text('{"prompt": "red cat"}\n{"prompt": "red heart"}\n')
    run = made(
        "image", "--model", str(drawer), "--prompts", str(own), "--method", "sjd", "--repeats", "1", "--json", str(file)
    )
    assert run.exit_code == 0, run.exception
    result: Result = load_result(file)
    assert result.prompts == {"prompts": 2} and [row.method for row in result.rows] == ["plain", "sjd"]
    assert result.row("prompts", "sjd").options == {"k": 12} and result.row("prompts", "sjd").units == 32


def test_clips_go_on_where_recorded_ones_do(world: Path, tmp_path: Path) -> None:
    file = tmp_path / "r.json"
    run = made(
        "video", "--model", str(world), "--quick", "--method", "frame-gs-sjd", "--window", "4", "--json", str(file)
    )
    assert run.exit_code == 0, run.exception
    result = load_result(file)
    assert (result.unit, result.piece, result.prompts) == ("frame", "clip", {"prompts": 1})
    drafted = result.row("prompts", "frame-gs-sjd")
    assert drafted.units == 5 and drafted.quality["same_as_plain"] == 1 and drafted.acceptance_length > 1


def test_mistakes_teach(drawer: Path, world: Path, tmp_path: Path) -> None:
    own = tmp_path / "own.jsonl"
    own.write_text('{"prompt": "red cat"}\n')
    for arguments, message in (
        (["image", "--json", str(tmp_path / "none" / "r.json")], "there is no folder"),
        (["image", "--prompts", "33"], "1 to 32 prompts of ours"),
        (["image", "--model", str(drawer), "--method", "gs-sdj"], "did you mean 'gs-sjd'"),
        (["image", "--model", str(drawer), "--method", "reflection"], "continuous"),
        (["image", "--model", str(world)], "draws no pictures: it is a NextFramePipeline"),
        (["video", "--model", str(drawer)], "makes no frames after actions: it is a TextToImagePipeline"),
        (["video", "--model", str(world), "--prompts", str(own)], "goes on with recorded clips"),
    ):
        run = made(*arguments)
        assert isinstance(run.exception, ValueError) and message in str(run.exception), (arguments, run.exception)


def test_captions_are_many_and_each_is_there_once() -> None:
    assert len(set(CAPTIONS)) == 32 and set(CAPTIONS) == {*HELD_OUT, *SEEN}
