"""`mmspec generate video`: the pipeline's frames in a file; actions by name, by number and from a file; mistakes."""

import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

from mmspec.cli.app import build
from tests.video.test_oasis_actions import walk, world


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    world().save_pretrained("world")
    Image.new("RGB", (8, 8), (200, 30, 90)).save("frame.png")
    torch.save(walk(), "walk.one_hot_actions.pt")
    return tmp_path


def invoke(actions, *more, model="world"):
    given = ("frame.png", "--actions", actions, "--model", model, "--steps", "2", "--seed", "3", "-o", "out.gif", *more)
    return CliRunner().invoke(build(), ["generate", "video", *given])


@pytest.mark.parametrize(
    ("actions", "call"),
    [
        ("forward, look left,1", ["forward", "look left", 1]),
        ("walk.one_hot_actions.pt", "walk.one_hot_actions.pt"),
    ],
)
def test_the_file_holds_the_frames_of_the_pipeline(place, actions, call):
    run = invoke(actions)
    assert run.exit_code == 0, run.output
    assert "branch-prediction (invariant)" in run.stderr and run.stdout == ""
    with Image.open("frame.png") as first:
        made = world().use("plain")(first, call, num_inference_steps=2, seed=3)
    made.save("wanted.gif")
    assert (place / "out.gif").read_bytes() == (place / "wanted.gif").read_bytes()


def test_mistakes_are_refused(place):
    (place / "text.png").write_text("no picture")
    for arguments, said in (
        (("fly",), "no action is called 'fly'"),
        (("forward", "--num-frames", "2"), "1 actions lead to 1 frames, not to 2"),
        (("gone.one_hot_actions.pt",), "there is no file gone.one_hot_actions.pt"),
    ):
        run = invoke(*arguments)
        assert run.exit_code and said in str(run.exception), run.exception
    run = invoke("0", model="mmspec/emoji")
    assert run.exit_code and "makes no video: it is a TextToImagePipeline, for mmspec generate image" in str(
        run.exception
    )
    run = CliRunner().invoke(build(), ["generate", "video", "text.png", "--actions", "0"])
    assert run.exit_code and "text.png is no picture that can be read" in str(run.exception)
    assert not (place / "out.gif").exists()
