"""`mmspec train student`: the loss is that of the definition, what is written loads and draws, and a run resumes."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import typer
from safetensors.torch import load_file

from mmspec.files import SEAL
from mmspec.training import loop
from mmspec_video.models.next_frame import NextFrameDiT
from mmspec_video.models.students import StudentAdapter, student_of
from mmspec_video.models.token_world import TokenWorldModel
from mmspec_video.pipeline import NextFramePipeline
from mmspec_video.training import student
from mmspec_video.training.command import train_student
from mmspec_video.training.student import (
    LEVELS,
    Clips,
    adaptable,
    adapter_of,
    consistency_loss,
    on_paths,
    velocities_after_clean,
)
from tests.support.worlds import tiny_vae, tiny_vq

CONTEXT, ACTIONS = 0.1, 4


@pytest.fixture
def dit():
    torch.manual_seed(0)
    model = NextFrameDiT(8, 2, 2, ACTIONS, dim=32, depth=1, heads=2, frames=3, context_time=CONTEXT)
    for weights in model.parameters():
        weights.data.copy_(torch.randn_like(weights) * 0.2)
    return model.eval()


def test_noisy_frames_velocities_after_clean_ones_are_what_the_sampler_will_see(dit):
    g = torch.Generator().manual_seed(0)
    latents, mixed = torch.randn(2, 3, 8, 2, 2, generator=g), torch.randn(2, 3, 8, 2, 2, generator=g)
    led, time = torch.randint(5, (2, 3), generator=g), torch.rand(2, 3, generator=g)
    with torch.no_grad():
        made = velocities_after_clean(dit, latents, mixed, time, led)
        for frame in range(3):
            clip = torch.cat([latents[:, :frame], mixed[:, frame : frame + 1]], 1)
            times = torch.full((2, frame + 1), CONTEXT)
            times[:, -1] = time[:, frame]
            alone = dit(clip, times, led[:, : frame + 1])[:, -1]
            torch.testing.assert_close(made[:, frame], alone, rtol=1e-4, atol=1e-4)


def test_a_consistent_student_has_no_loss_and_others_do(dit):
    """A velocity that does not depend on where one is leads straight to the frame from everywhere on a path."""
    g = torch.Generator().manual_seed(0)
    latents, noise = (torch.randn(2, 3, 8, 2, 2, generator=g) for _ in range(2))
    batch = latents, torch.zeros(2, 3, dtype=torch.int64), noise, torch.tensor([[1, 5, 16], [2, 3, 9]]) / 16

    class Straight(torch.nn.Module):
        blocks, config = (), SimpleNamespace(context_time=CONTEXT)

        def forward(self, x, time, actions, position=None, seen=None, keys=None):
            return noise - latents

    straight = Straight()
    assert consistency_loss(straight, straight, batch) < 1e-5
    assert consistency_loss(dit, straight, batch) > 0.1


def test_a_student_is_its_teacher_and_a_small_difference(dit, tmp_path):
    model = adaptable(dit, 2)
    args = torch.randn(1, 2, 8, 2, 2), torch.rand(1, 2), torch.tensor([[4, 1]])
    assert torch.equal(model(*args), dit(*args))  # differences begin at zero
    learned = [name for name, weights in model.named_parameters() if weights.requires_grad]
    assert learned and all(name.endswith((".down", ".up")) for name in learned)
    for weights in model.parameters():
        if weights.requires_grad:
            weights.data.copy_(torch.randn_like(weights) * 0.1)
    adapter_of(model, 2).save_pretrained(tmp_path)
    adapter = StudentAdapter.from_pretrained(tmp_path)
    student = adapter.student(dit)
    torch.testing.assert_close(student(*args), model(*args), rtol=1e-4, atol=1e-4)
    assert (student(*args) - dit(*args)).abs().max() > 0.01
    assert (student.sampler.steps, student.sampler.noisy) == (2, True)
    assert sum(p.numel() for p in adapter.parameters()) < sum(p.numel() for p in dit.parameters()) / 4
    with pytest.raises(ValueError, match="learned from another teacher"):
        adapter.student(NextFrameDiT(8, 2, 2, 4, dim=64, depth=1, heads=2))


def test_paths_have_times_of_levels_and_first_actions_that_nobody_knows():
    latents, actions = torch.randn(40, 3, 8, 2, 2), torch.randint(ACTIONS, (40, 3))
    made, led, noise, time = on_paths(latents, actions, ACTIONS, 5)
    assert torch.equal(made, latents) and torch.equal(led[:, 1:], actions[:, 1:]) and noise.std() > 0.9
    hidden = led[:, 0] == ACTIONS
    assert 5 < hidden.sum() < 35 and torch.equal(led[~hidden, 0], actions[~hidden, 0])
    assert torch.equal(time * LEVELS, (time * LEVELS).round()) and time.min() == 1 / LEVELS and time.max() == 1
    clips = Clips(torch.arange(2 * 6).view(2, 6, 1, 1, 1).float(), torch.arange(2 * 5).view(2, 5) % ACTIONS)
    made, led, *_ = clips.batch(30, 3, ACTIONS, 1, "cpu")
    clip, frame = made[:, 0, 0, 0, 0].long() // 6, made[..., 0, 0, 0].long() % 6
    assert {tuple(row) for row in frame.tolist()} == {(1, 2, 3), (2, 3, 4), (3, 4, 5)}
    assert torch.equal(led[:, 1:], (clip[:, None] * 5 + frame[:, 1:] - 1) % ACTIONS), "what led to a frame"


@pytest.fixture
def world(tmp_path):
    """The folder of a world of random weights, and clips in which a stripe moves as the actions say."""
    torch.manual_seed(0)
    dit = NextFrameDiT(8, 4, 4, ACTIONS, patch=2, dim=32, depth=1, heads=2, frames=3, steps=2)
    for weights in dit.parameters():
        weights.data.copy_(torch.randn_like(weights) * 0.2)
    NextFramePipeline(dit, tiny_vae(), ["stay", "left", "right", "go"]).save_pretrained(tmp_path / "world")
    actions = np.random.default_rng(0).integers(ACTIONS, size=(3, 7)).astype(np.uint8)
    frames = np.zeros((3, 8, 8, 8, 3), np.uint8)
    for clip in range(3):
        for number, at in enumerate([0, *(actions[clip].cumsum() % 7).tolist()]):
            frames[clip, number, :, at : at + 2] = 255
    np.savez_compressed(tmp_path / "clips.npz", frames=frames, actions=actions)
    return tmp_path


def trained(world, name="out", clips="clips.npz", **numbers):
    how = {"steps": 3, "batch": 2, "rank": 2, **numbers}
    train_student(str(world / "world"), world / clips, world / name, work=world / f"{name}-work", **how)
    return world / name


def weights(folder):
    return load_file(folder / "diffusion_pytorch_model.safetensors")


def test_a_student_is_written_whole_and_a_stopped_run_goes_on(world, monkeypatch):
    said, options = [], student.LoopOptions
    monkeypatch.setattr(student, "LoopOptions", lambda *a, **how: options(*a, **how, save_every=1, log_every=1))
    monkeypatch.setattr("typer.echo", said.append)
    folder = trained(world)
    facts = json.loads((folder / "training.json").read_text())
    assert facts["recipe"]["steps"] == 3 and set(facts["held_out"]) == {"gap", "gap of the teacher"}
    assert (folder / SEAL).is_file() and said[-1].startswith("Next: mmspec generate video FRAME --model")
    dit = NextFramePipeline.from_pretrained(world / "world").transformer
    made = student_of(dit, folder)
    assert made.config.objective == "consistency" and made.sampler.steps == 2

    def stop(line):
        if "step 2/3" in str(line):
            raise KeyboardInterrupt

    monkeypatch.setattr("typer.echo", stop)
    with pytest.raises(typer.Exit):
        trained(world, "broken")
    assert loop.load_tensors(world / "broken-work" / "student" / loop.CHECKPOINT)["step"] == 2
    assert not (world / "broken").exists()
    monkeypatch.setattr("typer.echo", str)
    again = weights(trained(world, "broken"))
    assert all(torch.equal(value, again[key]) for key, value in weights(folder).items()) and len(again) > 2
    other = weights(trained(world, "other", seed=1))
    assert any(not torch.equal(value, other[key]) for key, value in again.items())


def test_what_cannot_be_learnt_from_is_refused(world):
    frames, actions = np.zeros((2, 8, 8, 8, 3), np.uint8), np.zeros((2, 7), np.uint8)
    cases = {
        "pixels": ({"frames": frames[:, :, :4], "actions": actions}, "frames of 4 × 8 pixels, and this world of 8 × 8"),
        "short": ({"frames": frames[:, :3], "actions": actions[:, :2]}, "of more than 3 frames, the model's window"),
        "one": ({"frames": frames[:1], "actions": actions[:1]}, "there have to be two, one of which is held out"),
        "foreign": ({"frames": frames, "actions": actions + 9}, "have the action 9, and this world 4"),
        "floats": ({"frames": frames.astype(np.float32), "actions": actions}, "uint8"),
        "odd": ({"frames": frames, "actions": actions[:, :-1]}, "one between two frames"),
        "other": ({"pictures": frames}, "has no clips: it is a .npz"),
    }
    for name, (arrays, says) in cases.items():
        np.savez(world / f"{name}.npz", **arrays)
        with pytest.raises(ValueError, match=says):
            trained(world, clips=f"{name}.npz")
    (world / "text.npz").write_text("no")
    with pytest.raises(ValueError, match="has no clips"):
        trained(world, clips="text.npz")
    tokens = TokenWorldModel(10, 4, 4, ACTIONS, frames=5, dim=32, n_layer=1, n_head=2, multiple_of=16)
    NextFramePipeline(tokens, tiny_vq(), ["a", "b", "c", "d"]).save_pretrained(world / "codes")
    with pytest.raises(ValueError, match="this model is of another kind"):
        train_student(str(world / "codes"), world / "clips.npz", world / "no", work=world / "no-work")
    assert not (world / "out").exists() and not (world / "no").exists()
