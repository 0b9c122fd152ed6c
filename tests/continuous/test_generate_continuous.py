"""`mmspec generate continuous`: the picture of the pipeline in a file, its trace; CTRL-C; mistakes."""

import signal
import sys

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from mmspec import cli
from mmspec.cli.app import build
from mmspec.kits.pictures.rounds import traced
from mmspec_continuous.drafters.jacobi import ContinuousJacobi


@pytest.fixture(scope="module")
def saved(pipe, tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved") / "tiny"
    pipe.save_pretrained(folder)
    return folder


def invoke(saved, *arguments):
    return CliRunner().invoke(build(), ["generate", "continuous", *arguments, "--model", str(saved)])


def pixels(file):
    return np.asarray(Image.open(file))


@pytest.mark.parametrize(
    ("arguments", "use", "call"),
    [
        ((), {"k": 16}, {}),
        (("--method", "plain"), {"method": "plain"}, {}),
        (("--method", "reflection", "-k", "3", "--opt", "init=above"), {"k": 3, "init": "above"}, {}),
        (("--guidance", "1.5", "--negative", "apple"), {"k": 16}, {"guidance_scale": 1.5, "negative_prompt": "apple"}),
    ],
)
def test_the_file_is_the_picture_of_the_pipeline(pipe, saved, tmp_path, arguments, use, call):
    file, trace = tmp_path / "out.png", tmp_path / "trace.png"
    run = invoke(saved, "red heart", "-o", str(file), "--trace", str(trace), "--seed", "5", *arguments)
    assert run.exit_code == 0, run.output
    alike = type(pipe)(**pipe.components).use(**{"method": "reflection", **use})
    alike.set_progress_bar_config(disable=True)
    made = alike("red heart", seed=5, **call)
    assert np.array_equal(pixels(file), np.asarray(made.images[0]))
    assert np.array_equal(pixels(trace), np.asarray(traced(made.images[0], made.rounds[0])))
    assert "16 units" in run.stderr and "acceptance length" in run.stderr and run.stdout == ""
    assert ("which the target continuous-ar is used with" in run.stderr) == ("--method" not in arguments)


def test_weights_of_another_dtype(pipe, saved, tmp_path):
    run = invoke(saved, "blue cat", "--dtype", "bfloat16", "-o", str(tmp_path / "out.png"))
    assert run.exit_code == 0 and (tmp_path / "out.png").is_file(), run.output
    run = invoke(saved, "blue cat", "--dtype", "bfloat61", "-o", str(tmp_path / "none.png"))
    assert isinstance(run.exception, ValueError) and "did you mean 'bfloat16'" in str(run.exception)


def test_several_pictures_on_a_sheet(saved, tmp_path):
    run = invoke(saved, "blue cat", "--num-images", "4", "-o", str(tmp_path / "out.jpg"))
    assert run.exit_code == 0 and Image.open(tmp_path / "out.jpg").size == (16, 16), run.output


def test_ctrl_c_keeps_the_partial_picture(saved, tmp_path, monkeypatch):
    propose = ContinuousJacobi.propose

    def interrupted(self, state, k, noise):
        if state.host.emitted[0] > 6:
            signal.raise_signal(signal.SIGINT)
        return propose(self, state, k, noise)

    before = signal.getsignal(signal.SIGINT)
    monkeypatch.setattr(ContinuousJacobi, "propose", interrupted)
    run = invoke(saved, "red heart", "-o", str(tmp_path / "out.png"), "-k", "2")
    assert run.exit_code == 130 and signal.getsignal(signal.SIGINT) is before
    assert "out.png is what there is" in run.stderr and " of 16 tokens" in run.stderr
    assert pixels(tmp_path / "out.png").shape == (8, 8, 3)


def test_mistakes_are_one_line_and_exit_code_2(saved, tmp_path, monkeypatch, capsys):
    model, out = ("--model", str(saved)), ("-o", str(tmp_path / "out.png"))
    wrong = {
        ("red", *model, "-o", str(tmp_path / "nowhere" / "out.png")): "there is no folder",
        ("red", *model, "-o", str(tmp_path / "out.txt")): "out.txt does not end in a format of pictures",
        ("", *model, *out): "prompt 0 is empty",
        ("red", *model, *out, "--guidance", "0.5"): "guidance_scale must be a finite number >= 1",
        ("red", *model, *out, "--method", "reflektion"): "did you mean 'reflection'",
        ("red", *model, *out, "--method", "gs-sjd"): "needs codebook, discrete",
        ("red", *model, *out, "--opt", "init=right"): "option 'init' is 'right', allowed is",
        ("red", "--model", "mmspec/no-such-model", *out): "no shipped model is called 'no-such-model'",
    }
    for arguments, says in wrong.items():
        monkeypatch.setattr(sys, "argv", ["mmspec", "generate", "continuous", *arguments])
        with pytest.raises(SystemExit) as exit:
            cli.main()
        said = capsys.readouterr()
        assert exit.value.code == 2 and said.out == "" and "Traceback" not in said.err
        assert "mmspec: " in said.err and says in said.err, said.err
    assert list(tmp_path.iterdir()) == []
