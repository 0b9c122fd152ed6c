"""A vision-language model as the judge of pictures: its answers are its own `generate`'s, and move no generator."""

from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import CLIPImageProcessor, LlavaProcessor, PreTrainedTokenizerFast
from typer.testing import CliRunner

from mmspec.cli.app import build
from mmspec.kits.pictures.adaptive_negative import BRIEFLY, QUESTION, AdaptiveNegative, VisionJudge, named
from mmspec_image.pipeline import TextToImagePipeline
from tests.image.conftest import WORDS
from tests.support.zoo import VOCAB
from tests.support.zoo.vision import IMAGE, PATCH, SIZE, VISION

KNOWN = range(3, 3 + len(WORDS[2:]))
"""Ids of the words that the pictures' model knows."""
SAYS = {"max_new_tokens": 3, "suppress_tokens": [i for i in range(VOCAB) if i not in KNOWN]}
TEMPLATE = (
    "{% for part in messages[0]['content'] %}{{ '<image> ' if part['type'] == 'image' else part['text'] + ' ' }}"
    "{% endfor %}"
)
PROMPTS, SEEDS = ["red heart", "blue cat face"], [7, 8]


@pytest.fixture(scope="module")
def judge_model() -> Any:
    return VISION["llava"].model()


@pytest.fixture(scope="module")
def processor() -> LlavaProcessor:
    """Of Llava, with a tokenizer of whole words; the question's words are unknown to it."""
    names = {**dict(zip(KNOWN, WORDS[2:], strict=True)), 0: "<pad>", 1: "<unk>", IMAGE: "<image>"}
    known = Tokenizer(models.WordLevel({names.get(i, f"word{i}"): i for i in range(VOCAB)}, unk_token="<unk>"))
    known.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=known, pad_token="<pad>", unk_token="<unk>")
    tokenizer.add_special_tokens({"additional_special_tokens": ["<image>"]})
    sides = {"height": SIZE, "width": SIZE}
    eyes = CLIPImageProcessor(size=sides, crop_size=sides)
    layout = {"patch_size": PATCH, "num_additional_image_tokens": 1, "vision_feature_select_strategy": "default"}
    return LlavaProcessor(eyes, tokenizer, chat_template=TEMPLATE, **layout)


def picture(seed: int) -> Image.Image:
    pixels = torch.randint(256, (8, 8, 3), generator=torch.Generator().manual_seed(seed), dtype=torch.uint8)
    return Image.fromarray(pixels.numpy())


def stock(model: Any, processor: Any, picture: Image.Image, question: str = QUESTION) -> str:
    """The answer written out: the processor's ids, the model's own greedy `generate`, the tokenizer's words."""
    inputs = processor(text=["<image> " + BRIEFLY + question + " "], images=[picture], return_tensors="pt")
    ids = model.generate(**inputs, **SAYS, do_sample=False)[0, inputs["input_ids"].shape[1] :]
    return str(processor.decode(ids, skip_special_tokens=True))


def test_answers_are_the_models_own_and_draw_nothing(judge_model: Any, processor: Any) -> None:
    questions = ["What is red ?", "What is blue ? And what is a cat ?"]
    judge = VisionJudge(judge_model, processor, questions, generate=SAYS, method="token-recycling")
    torch.manual_seed(0)
    state = torch.get_rng_state()
    said = [judge(picture(seed)) for seed in range(4)]
    assert torch.equal(torch.get_rng_state(), state)
    assert said == [[stock(judge_model, processor, picture(seed), each) for each in questions] for seed in range(4)]
    assert len({first for first, _ in said}) > 1, "they depend on the picture"
    assert any(first != second for first, second in said), "and on the question"
    assert judge.report is not None and judge.report.emitted == 3


def test_sampled_answers_depend_on_picture_and_seed_alone(judge_model: Any, processor: Any) -> None:
    def said(seed: int, method: str) -> list[list[str]]:
        how = {"generate": {**SAYS, "do_sample": True, "temperature": 20.0}}
        judge = VisionJudge(judge_model, processor, seed=seed, method=method, **how)
        return [judge(picture(number)) for number in (0, 1, 0)]

    torch.manual_seed(0)
    state = torch.get_rng_state()
    first = said(1, "plain")
    assert torch.equal(torch.get_rng_state(), state)
    torch.rand(5)
    assert said(1, "token-recycling") == first and first[0] == first[2] != first[1]
    assert said(2, "plain") != first


def test_a_steered_picture_depends_on_no_draft(tiny: Any, judge_model: Any, processor: Any) -> None:
    call = {"seed": SEEDS, "steer_every": 4, "output_type": "latent", "guidance_scale": 3.0}
    made, said = [], []
    for method, asked in (("plain", "plain"), ("gs-sjd", "token-recycling")):
        pipe = TextToImagePipeline(**tiny.components).use(method)
        pipe.set_progress_bar_config(disable=True)
        away = AdaptiveNegative.from_model(judge_model, processor, generate=SAYS, method=asked, most=1)
        made.append(pipe(PROMPTS, callback_on_step_end=away, **call).codes)
        said.append(away.said)
    assert torch.equal(*made) and said[0] == said[1] and len(said[0]) == 8
    without = tiny(PROMPTS, **{**call, "steer_every": None}).codes
    assert not torch.equal(without, made[0]), "the judge has an effect"


@pytest.mark.parametrize(
    ("answer", "things"),
    [
        ("It appears to be a fluffy cat", ["fluffy cat"]),
        (" The dog. ", ["dog"]),
        ("yes, it is the cat", ["it is cat"]),  # one beginning is left out, as in the released code
        ("a cat, an old dog; birds and the Sun or a moon & stars", ["cat", "old dog", "birds", "sun", "moon", "stars"]),
        ("(a man in the hat)", ["man in hat"]),
        *((empty, []) for empty in ("nothing", " Nothing. ", "None", "", "no", "Yes!", "no dog", "a", "x", "2, 1")),
    ],
)
def test_what_an_answer_names(answer: str, things: list[str]) -> None:
    assert named(answer) == things


def test_several_answers_join_the_list(tiny: Any) -> None:
    answers = iter([["a red cat and a star", None], "The Star", ["star", "blue"], None, None, None, None, None])
    away = AdaptiveNegative(lambda picture: next(answers))
    tiny(PROMPTS, callback_on_step_end=away, seed=SEEDS, steer_every=4, output_type="latent", guidance_scale=3.0)
    assert [words for _, row, words in away.said if row == 0] == ["red cat", "star", "star", "blue"]
    assert away._lists == [["red cat", "star", "blue"], ["star"]]


def test_the_oldest_leave_a_list_that_is_too_long(tiny: Any) -> None:
    """The tiny model reads six words."""
    answers = iter(["red heart", "blue cat", "apple face star"])
    away = AdaptiveNegative(lambda picture: next(answers, None), negative_prompt="apple")
    call: dict[str, Any] = {"seed": 7, "steer_every": 4, "output_type": "latent", "guidance_scale": 3.0}
    tiny("red heart", callback_on_step_end=away, **call)
    assert away._lists == [["blue cat", "apple face star"]] and len(away.said) == 3


def test_a_model_looks_on_from_the_command_line(
    tiny: Any, saved: Any, processor: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    judge_model = VISION["llava"].model()
    judge_model.generation_config.suppress_tokens = SAYS["suppress_tokens"]
    decode = type(processor).decode  # of a model that ends its answers
    monkeypatch.setattr(type(processor), "decode", lambda self, ids, **how: decode(self, ids[:2], **how))
    for part in (judge_model, processor):
        part.save_pretrained(tmp_path / "judge")
    out = tmp_path / "out.png"
    how = ["red heart", "-o", str(out), "--model", str(saved), "--seed", "7", "--judge", str(tmp_path / "judge")]
    how += ["--most", "1"]
    how += [
        "--question",
        "red ?",
        "--question",
        "blue ?",
        "--steer-every",
        "4",
        "--guidance",
        "3",
        "--negative",
        "star",
    ]
    run = CliRunner().invoke(build(), ["generate", "image", *how])
    assert run.exit_code == 0, run.output
    away = AdaptiveNegative.from_model(judge_model, processor, ["red ?", "blue ?"], negative_prompt="star", most=1)
    call: dict[str, Any] = {"seed": 7, "steer_every": 4, "guidance_scale": 3.0, "negative_prompt": "star"}
    drawn = tiny("red heart", callback_on_step_end=away, **call).images[0]
    assert Image.open(out).tobytes() == drawn.tobytes()
    assert "led away from: " + ", ".join(dict.fromkeys(words for *_, words in away.said)) in run.stderr
    run = CliRunner().invoke(build(), ["generate", "image", *how, "--judge", "mmspec/text-1m"])
    assert run.exit_code and "no model that answers in words about a picture" in str(run.exception)


def test_a_judge_without_words_changes_nothing(tiny: Any) -> None:
    call = {"seed": SEEDS, "steer_every": 8, "output_type": "latent", "guidance_scale": 3.0}
    away = AdaptiveNegative(lambda picture: " ")
    assert torch.equal(
        tiny(PROMPTS, callback_on_step_end=away, **call).codes, tiny(PROMPTS, **{**call, "steer_every": None}).codes
    )
    assert away.said == []


def test_bad_input(tiny: Any, judge_model: Any, processor: Any) -> None:
    torch.manual_seed(0)
    state = torch.get_rng_state()

    def broken(picture: Image.Image) -> str:
        torch.rand(3)
        raise RuntimeError("no opinion")

    with pytest.raises(RuntimeError, match="no opinion"):
        tiny(PROMPTS, seed=SEEDS, guidance_scale=3.0, steer_every=8, callback_on_step_end=AdaptiveNegative(broken))
    assert torch.equal(torch.get_rng_state(), state)
    with pytest.raises(ValueError, match="empty question"):
        AdaptiveNegative.from_model(judge_model, processor, " ")
    with pytest.raises(ValueError, match="did you mean 'plain'"):
        AdaptiveNegative.from_model(judge_model, processor, method="plane")
    blank = LlavaProcessor(processor.image_processor, processor.tokenizer)
    with pytest.raises(ValueError, match="LlavaProcessor has no chat template"):
        AdaptiveNegative.from_model(judge_model, blank)
