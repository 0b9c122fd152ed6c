"""`mmspec generate image`: the picture of the pipeline in a file, whole or not at all; its trace; CTRL-C; mistakes."""

import signal
import sys

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

from mmspec import cli
from mmspec.api.prompt_enhancer import PromptEnhancer
from mmspec.cli.app import build
from mmspec.core.report import Report
from mmspec.kits.pictures.rounds import RAMP, colours, traced
from mmspec_image.drafters.jacobi import ImageJacobi


def invoke(saved, *arguments):
    return CliRunner().invoke(build(), ["generate", "image", *arguments, "--model", str(saved)])


def pixels(file):
    return np.asarray(Image.open(file))


@pytest.mark.parametrize(
    ("arguments", "call"),
    [
        ((), {}),
        (("--method", "plain"), {}),
        (("--method", "gs-sjd", "-k", "3", "--opt", "init=left", "--guidance", "1"), {"guidance_scale": 1.0}),
        (
            ("--temperature", "0.7", "--top-k", "9", "--top-p", "0.8", "--negative", "apple"),
            {"temperature": 0.7, "top_k": 9, "top_p": 0.8, "negative_prompt": "apple"},
        ),
    ],
)
def test_the_file_is_the_picture_of_the_pipeline(tiny, saved, tmp_path, arguments, call):
    run = invoke(saved, "red heart", "-o", str(tmp_path / "out.png"), "--seed", "5", *arguments)
    assert run.exit_code == 0, run.output
    assert np.array_equal(pixels(tmp_path / "out.png"), np.asarray(tiny("red heart", seed=5, **call).images[0]))
    assert "16 units" in run.stderr and "acceptance length" in run.stderr and run.stdout == ""
    assert [file.name for file in tmp_path.iterdir()] == ["out.png"]
    assert ("which the target llamagen is used with" in run.stderr) == ("--method" not in arguments)


def test_classes_and_several_pictures_on_a_sheet(tiny_classes, tmp_path):
    tiny_classes.save_pretrained(tmp_path / "model")
    file, trace = tmp_path / "out.jpg", tmp_path / "trace.png"
    more = ("--class-label", "2", "--num-images", "6", "-o", str(file), "--trace", str(trace))
    run = invoke(tmp_path / "model", *more)
    assert run.exit_code == 0, run.output
    assert Image.open(file).format == "JPEG" and Image.open(file).size == (24, 16)
    assert Image.open(trace).size == (3 * 64, 2 * 64)


def test_the_trace_shows_the_rounds(tiny, saved, tmp_path):
    trace = tmp_path / "trace.png"
    run = invoke(saved, "red heart", "-o", str(tmp_path / "out.png"), "--trace", str(trace), "--seed", "5")
    assert run.exit_code == 0, run.output
    made = tiny("red heart", k=16, seed=5)
    assert np.array_equal(pixels(trace), np.asarray(traced(made.images[0], made.rounds[0])))


def test_cells_of_one_round_have_one_colour():
    rounds = torch.tensor([[0, 1, 1, 2], [2, 3, 3, 3], [4, 4, 5, 6], [8, 8, -1, -1]])
    made = colours(rounds)
    first, last = (torch.tensor(list(bytes.fromhex(colour))) for colour in (RAMP[0], RAMP[-1]))
    assert torch.equal(made[0, 0], first.float()) and torch.equal(made[3, 0], last.float())
    assert not made[3, 2:].any() and torch.equal(made[0, 1], made[0, 2])
    seen = {tuple(colour.tolist()) for colour in made.flatten(0, 1)}
    assert len(seen) == len(rounds.unique())
    bright = [float(made[rounds == n].sum(-1).max()) for n in range(7)]
    for together in (bright[::2], bright[1::2]):
        assert together == sorted(together), "later rounds are lighter"
    assert bright[1] < bright[0] or bright[3] < bright[2], "neighbouring rounds can be told apart"
    picture = traced(Image.new("RGB", (8, 8), (100, 100, 100)), rounds)
    assert picture.size == (64, 64)
    cells = np.asarray(picture).reshape(4, 16, 4, 16, 3)
    assert (cells == cells[:, :1, :, :1]).all() and cells[3, 0, 3, 0].tolist() == [35, 35, 35]


def test_a_language_model_rewrites_the_prompt(tiny, saved, tmp_path, monkeypatch):
    """The size follows the aspect that it names where one is given; this model draws one size."""

    def rewritten(self, prompt, seed, report):
        report(Report())
        return f"blue cat\nAspect: 16:9 {seed != 0 and prompt == 'red heart'}"

    monkeypatch.setattr(PromptEnhancer, "_rewritten", rewritten)
    how = ("red heart", "-o", str(tmp_path / "out.png"), "--seed", "5", "--enhance", "mmspec/text-1m")
    run = invoke(saved, *how)
    assert run.exit_code == 0 and "prompt: blue cat\n" in run.stderr and "True" in run.stderr, run.output
    refused = invoke(saved, *how, "--height", "256", "--width", "256")
    assert "this model draws 8 × 8 pixels (height × width), not 192 × 320" in str(refused.exception)
    refused = invoke(saved, *how[1:])
    assert "--enhance rewrites a prompt, and there is none" in str(refused.exception)


@pytest.fixture
def listening():
    """Ctrl-C as at a terminal: whoever runs tests in the background may have told them to ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_ctrl_c_keeps_the_partial_picture(tiny, saved, tmp_path, monkeypatch, listening):
    propose = ImageJacobi.propose

    def interrupted(self, state, k, noise):
        if state.host.emitted[0] > 6:
            signal.raise_signal(signal.SIGINT)
        return propose(self, state, k, noise)

    before = signal.getsignal(signal.SIGINT)
    monkeypatch.setattr(ImageJacobi, "propose", interrupted)
    run = invoke(saved, "red heart", "-o", str(tmp_path / "out.png"), "--seed", "5", "-k", "4")
    monkeypatch.undo()
    assert run.exit_code == 130 and signal.getsignal(signal.SIGINT) is before
    assert "out.png is what there is" in run.stderr and " of 16 codes" in run.stderr
    part, whole = pixels(tmp_path / "out.png"), np.asarray(tiny("red heart", seed=5).images[0])
    assert part.shape == whole.shape and not np.array_equal(part, whole)


def test_a_second_ctrl_c_stops_at_once_and_leaves_no_file(saved, tmp_path, monkeypatch, listening):
    def twice(self, state, k, noise):
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(ImageJacobi, "propose", twice)
    run = invoke(saved, "red heart", "-o", str(tmp_path / "out.png"))
    assert run.exit_code == 130 and list(tmp_path.iterdir()) == []


def test_nothing_is_left_half_written(saved, tmp_path, monkeypatch):
    def broken(self, file, *_):
        file.write_bytes(b"half")
        raise OSError("the disk is full")

    (tmp_path / "out.png").write_bytes(b"the last picture")
    monkeypatch.setattr(Image.Image, "save", broken)
    run = invoke(saved, "red heart", "-o", str(tmp_path / "out.png"))
    assert isinstance(run.exception, OSError)
    assert [(file.name, file.read_bytes()) for file in tmp_path.iterdir()] == [("out.png", b"the last picture")]


def message(monkeypatch, capsys, *arguments):
    """The output of a user's mistake: one line, exit code 2."""
    monkeypatch.setattr(sys, "argv", ["mmspec", "generate", "image", *arguments])
    with pytest.raises(SystemExit) as exit:
        cli.main()
    said = capsys.readouterr()
    assert exit.value.code == 2 and said.out == "" and "Traceback" not in said.err
    return said.err


def test_the_words_are_listed_and_nothing_is_drawn(saved, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    made = invoke(saved, "--words")
    assert made.exit_code == 0 and made.output.split()[:5] == ["red", "blue", "heart", "cat", "face"]
    assert list(tmp_path.iterdir()) == []


def test_mistakes_are_one_line_and_exit_code_2(saved, tmp_path, monkeypatch, capsys):
    model, out = ("--model", str(saved)), ("-o", str(tmp_path / "out.png"))
    wrong = {
        ("red", *model, "-o", str(tmp_path / "nowhere" / "out.png")): "there is no folder",
        ("red", *model, "-o", str(tmp_path)): "is a folder; name a file",
        ("red", *model, "-o", str(tmp_path / "out.txt")): "out.txt does not end in a format of pictures",
        ("red", *model, *out, "--trace", str(tmp_path / "trace")): "trace does not end in a format",
        (*model, *out): "give one of prompt=, class_labels=",
        ("", *model, *out): "prompt 0 is empty",
        ("red", *model, *out, "--class-label", "1"): "got prompt and class_labels",
        ("red", *model, *out, "--guidance", "0.5"): "guidance_scale must be a finite number >= 1",
        ("red", *model, *out, "--method", "gs-sdj"): "did you mean 'gs-sjd'",
        ("red", *model, *out, "--opt", "init=right"): "option 'init' is 'right', allowed is",
        ("red", "--model", "mmspec/no-such-model", *out): "no shipped model is called 'no-such-model'",
        ("red", "--model", str(tmp_path), *out): "has no *.safetensors file",
    }
    for arguments, says in wrong.items():
        said = message(monkeypatch, capsys, *arguments)
        assert "mmspec: " in said and says in said, said
    assert "--top-p" in message(monkeypatch, capsys, "red", "--top-p", "2")
    assert list(tmp_path.iterdir()) == []
