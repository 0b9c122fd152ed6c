"""Oasis replays files of actions: the model reads the file's own vectors, and each stands in the table once."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from mmspec_video.models.next_frame import NextFrameDiT
from mmspec_video.models.oasis import OasisDiT
from mmspec_video.models.oasis_actions import KEYS, PRESETS, read_actions, vector_of
from mmspec_video.models.oasis_vae import OasisVAE
from mmspec_video.pipeline import NextFramePipeline
from tests.support.worlds import tiny_vae

WALK = 6


def world(**how: Any) -> NextFramePipeline:
    torch.manual_seed(0)
    sizes = dict(input_h=4, input_w=4, in_channels=3, hidden_size=32, depth=1, num_heads=2, max_frames=4)
    model = OasisDiT(**sizes).eval()
    for weights in model.parameters():
        weights.data.copy_(torch.randn(weights.shape) * 0.1)
    vae = OasisVAE(3, 8, 8, 2, enc_dim=32, enc_depth=1, enc_heads=2, dec_dim=32, dec_depth=1, dec_heads=2).eval()
    pipe = NextFramePipeline(model, vae, **how)
    pipe.set_progress_bar_config(disable=True)
    return pipe


def walk() -> Tensor:
    """Keys, and turns of the camera that no preset has; the third action is the first one again."""
    actions = torch.zeros(WALK, len(KEYS))
    actions[:, KEYS.index("forward")] = 1
    actions[1, KEYS.index("cameraX")], actions[3, KEYS.index("cameraY")] = 0.325, -0.975
    actions[4] = torch.tensor(vector_of("jump"))
    actions[5, KEYS.index("cameraY")] = 0.1
    return actions


@pytest.fixture
def file(tmp_path: Path) -> Path:
    torch.save(walk(), tmp_path / "walk.one_hot_actions.pt")
    return tmp_path / "walk.one_hot_actions.pt"


def first() -> Tensor:
    return torch.rand(1, 1, 3, 8, 8, generator=torch.Generator().manual_seed(0))


def replayed(pipe: NextFramePipeline, actions: Any, **how: Any) -> Any:
    return pipe(first(), actions, num_inference_steps=2, seed=5, output_type="pt", **how)


def test_the_model_reads_the_files_own_vectors(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the authors' code hands them over: zeros for the first frame, then a vector a frame, in a window of frames."""
    pipe, read = world(), list[Tensor]()
    forward = OasisDiT.forward

    def watched(self: OasisDiT, x: Tensor, time: Tensor, actions: Tensor, *rest: Any) -> Tensor:
        read.append(actions)
        return forward(self, x, time, actions, *rest)

    monkeypatch.setattr(OasisDiT, "forward", watched)
    replayed(pipe, str(file), cache="none")
    whole, window = torch.cat([torch.zeros(1, len(KEYS)), walk()]), 4
    for frame, seen in enumerate(read[1::2], 1):
        assert torch.equal(seen[0], whole[max(0, frame + 1 - window) : frame + 1])
    assert len(read) == 2 * WALK


@pytest.mark.parametrize("method", ["plain", "branch-prediction", "nfd"])
def test_a_replay_is_the_walk_by_numbers(file: Path, method: str) -> None:
    pipe = world().use(method)
    before = len(PRESETS)
    made = replayed(pipe, file)
    assert pipe.config.actions[before:] == ["forward cameraX 0.325", "forward cameraY -0.975", "forward cameraY 0.1"]
    forward, jump = (list(PRESETS).index(name) for name in ("forward", "jump"))
    assert made.actions.tolist() == [[forward, before, forward, before + 1, jump, before + 2]]
    again = replayed(pipe, walk().numpy())
    assert torch.equal(again.frames, made.frames) and len(pipe.config.actions) == before + 3
    vectors = walk()[[1, 4, 5, 3, 0]]
    by_number = world(action_vectors=vectors.tolist()).use(method)
    assert torch.equal(replayed(by_number, [4, 0, 4, 3, 1, 2]).frames, made.frames)
    two = pipe(first().expand(2, -1, -1, -1, -1), torch.stack([walk(), walk().flip(0)]), seed=[5, 6], output_type="pt")
    assert two.actions.shape == (2, WALK)


def test_a_player_presses_keys_behind_a_replay(file: Path) -> None:
    """Guesses may be any of the larger action space, and the first frame's action is still unknown."""
    pipe = world().use("branch-prediction", branches=16)
    keys = ["forward", "look left", "forward cameraX 0.325"]
    replayed(pipe, file)
    ours = replayed(pipe, lambda number, frames: keys[number], num_frames=3)
    plain = world().use("plain")
    numbers = plain.add_actions(walk())
    assert torch.equal(ours.frames, replayed(plain, ["forward", "look left", int(numbers[1])]).frames)


def test_a_saved_pipeline_keeps_its_actions(file: Path, tmp_path: Path) -> None:
    pipe = world(actions=["stay", "look up"])
    made = replayed(pipe, file)
    pipe.save_pretrained(tmp_path / "saved")
    loaded = NextFramePipeline.from_pretrained(tmp_path / "saved")
    assert loaded.config.actions == pipe.config.actions and torch.equal(replayed(loaded, file).frames, made.frames)


def test_wrong_files_are_refused(file: Path, tmp_path: Path) -> None:
    pipe = world()
    with pytest.raises(ValueError, match="6 actions lead to 6 frames, not to 7"):
        replayed(pipe, file, num_frames=7)
    for made, message in (
        (torch.zeros(4, 24), r"an action of this model has 25 numbers, \[frame, 25\], not \[4, 24\]"),
        (torch.zeros(0, 25), r"not \[0, 25\]"),
        (torch.full((4, 25), 2.0), "numbers of an action are from -1 to 1"),
        (torch.full((4, 25), torch.nan), "numbers of an action are from -1 to 1"),
    ):
        torch.save(made, tmp_path / "other.pt")
        with pytest.raises(ValueError, match=message):
            replayed(pipe, str(tmp_path / "other.pt"))
    for held, message in (
        (torch.zeros(25), r"holds \[25\]; a file of actions is a tensor \[frame, 25\]"),
        ([{"forward": 1}], "holds a list; a file of actions"),
    ):
        torch.save(held, tmp_path / "other.pt")
        with pytest.raises(ValueError, match=message):
            read_actions(tmp_path / "other.pt")
    (tmp_path / "other.pt").write_bytes(b"no")
    with pytest.raises(ValueError, match=r"other.pt: it is damaged.*actions are in files called \*.one_hot_actions.pt"):
        read_actions(tmp_path / "other.pt")
    with pytest.raises(ValueError, match=r"there is no file gone\.pt"):
        replayed(pipe, "gone.pt")
    with pytest.raises(ValueError, match="did you mean 'forward'"):
        world(actions=["forwards"])
    sizes = dict(patch=2, dim=32, depth=1, heads=2, frames=4, steps=2)
    with pytest.raises(ValueError, match="NextFrameDiT reads actions by number or name"):
        NextFramePipeline(NextFrameDiT(8, 4, 4, 4, **sizes), tiny_vae()).add_actions(walk())
