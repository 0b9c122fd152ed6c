"""Recipe `video`: what it learns from, that every part learns, and that what it writes can be played."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import mmspec
from mmspec.kits.pictures.models.vq import LlamaGenVQ
from mmspec_video.models.next_frame import NextFrameDiT
from mmspec_video.models.students import StudentAdapter
from mmspec_video.models.token_world import TokenWorldModel
from mmspec_video.training import student as students
from tools.train.video import courts, denoising, faces, ship, tokens, world
from tools.train.video.autoencoders import Restarts
from tools.train.video.coded import CodedEpisodes
from tools.train.video.recipe import VideoRecipe
from tools.train.video.tokens import drafted, drawn, mixed, next_code, sequence
from tools.train.video.walking import ACTIONS, STEP, TOUR, Pose, Walker

RECIPE = VideoRecipe(
    episodes=10, length=12, height=16, width=16, codes=16, channels=8, frames=3, vq_steps=2, vq_batch=2, vae_steps=2,
    vae_batch=2, token_steps=2, whole_steps=2, token_batch=2, short_share=0.5, short_batch=3, short_frames=2,
    dit_steps=2, dit_batch=2, student_steps=2, student_batch=2, rank=2,
)  # fmt: skip


def stripes(episodes, length, size, seed):
    """A world in its place: a stripe that moves as the actions say."""
    actions = np.random.default_rng(seed).integers(len(ACTIONS), size=(episodes, length)).astype(np.uint8)
    frames = np.zeros((episodes, length, *size, 3), np.uint8)
    for episode in range(episodes):
        at = 0
        for i in range(length):
            frames[episode, i, :, at : at + 4] = 255
            at = (at + (0, -2, 2, 4)[actions[episode, i]]) % (size[1] - 4)
    return frames, actions


@pytest.fixture
def small_model(monkeypatch):
    """Muon multiplies in bfloat16, which some CPUs only emulate: the shipped size would take a minute."""
    sizes = {"dim": 32, "n_layer": 1, "n_head": 2}
    made = tokens.TokenWorldModel
    monkeypatch.setattr(tokens, "TokenWorldModel", lambda *grid, **shipped: made(*grid, **(shipped | sizes)))


@pytest.fixture
def clips():
    g = torch.Generator().manual_seed(0)
    codes = torch.randint(16, (4, 12, 4), generator=g).to(torch.int16)
    return CodedEpisodes(codes, torch.randint(4, (4, 12), generator=g), torch.tensor([0, 2]))


@pytest.fixture
def latents():
    g = torch.Generator().manual_seed(0)
    frames = torch.randn(4, 12, 8, 2, 2, generator=g).half()
    return CodedEpisodes(frames, torch.randint(4, (4, 12), generator=g), torch.tensor([0, 2]))


@pytest.fixture
def dit():
    torch.manual_seed(0)
    model = NextFrameDiT(8, 2, 2, 4, dim=32, depth=1, heads=2, frames=3)
    for weights in model.parameters():
        weights.data.copy_(torch.randn_like(weights) * 0.2)
    return model


@pytest.fixture
def vq():
    torch.manual_seed(0)
    return LlamaGenVQ(16, ch=32, encoder_ch_mult=(1, 1), decoder_ch_mult=(1, 1), z_channels=32, num_res_blocks=1)


def test_the_tour_passes_all_landmarks_and_comes_back():
    pose, seen = Pose.first(), set()
    for action, times in TOUR:
        for _ in range(times):
            pose = pose.after(ACTIONS.index(action))
            ahead = [court for court in courts.COURTS if in_sight(pose, court)]
            seen |= {courts.COURTS.index(court) for court in ahead}
    assert seen == {0, 1, 2, 3} and len(courts.COURTS) == 4
    assert pose.degrees == 0 and math.dist((pose.x, pose.y), courts.COURTS[0].centre) < 1e-9


def in_sight(pose, court):
    """True if a landmark is near, and in the middle half of what is seen."""
    x, y = (there - here for there, here in zip(court.corner, (pose.x, pose.y), strict=True))
    off = (math.degrees(math.atan2(y, x)) - pose.degrees + 180) % 360 - 180
    return abs(off) < 20 and math.hypot(x, y) < courts.COURT


def test_walls_and_landmarks_stop_the_player_and_doors_do_not():
    forward = ACTIONS.index("forward")
    x, y = courts.COURTS[0].centre
    for degrees, ends in ((0.0, courts.SIDE - courts.BODY), (180.0, courts.BODY), (270.0, courts.BODY)):
        pose = Pose(x, y, degrees)
        for _ in range(30):
            pose = pose.after(forward)
            assert courts.free(pose.x, pose.y)
        reached = pose.x if degrees in (0.0, 180.0) else pose.y
        assert abs(reached - ends) < STEP, "through the door to the far wall, and to the walls behind and beside"
    pose = Pose(x, y, 225.0)  # the landmark is ahead
    for _ in range(30):
        pose = pose.after(forward)
    assert math.dist((pose.x, pose.y), courts.COURTS[0].corner) > courts.BODY + 0.5
    beside = Pose(0.5, 3.6, 45.0).after(forward)
    assert beside.x > 0.5 and beside.y == 3.6, "it slides along a wall"


def test_the_player_goes_everywhere_and_is_rarely_stuck():
    stuck, visited, done = 0, set(), []
    for episode in range(12):
        walker = Walker(np.random.default_rng(episode))
        for _ in range(200):
            before = walker.pose
            done.append(walker.acts())
            stuck += done[-1] == ACTIONS.index("forward") and walker.pose == before
            assert courts.free(walker.pose.x, walker.pose.y)
            visited.add((walker.pose.x > courts.SIDE / 2, walker.pose.y > courts.SIDE / 2))
    assert len(visited) == 4 and stuck < 0.1 * len(done)
    assert np.bincount(done, minlength=4).min() > 0.01 * len(done)
    assert np.mean(np.diff(done) == 0) > 0.6, "it mostly goes on"


def test_frames_show_what_is_there(tmp_path, monkeypatch):
    pytest.importorskip("panda3d")
    monkeypatch.chdir(tmp_path)
    frames, actions = world.rendered(2, 5, (48, 64), 1)
    again, other = world.rendered(2, 5, (48, 64), 1)[0], world.rendered(2, 5, (48, 64), 2)[0]
    assert frames.shape == (2, 5, 48, 64, 3) and actions.shape == (2, 5)
    assert np.array_equal(frames, again) and not np.array_equal(frames, other)
    tour, walked = world.toured((48, 64))
    assert tour.shape == (1, walked.shape[1] + 1, 48, 64, 3) and np.array_equal(tour[0, 0], tour[0, -1])
    sky, floor = tour[0, :, 0, 32].astype(int), tour[0, :, -1, 32].astype(int)
    assert (np.abs(sky - faces.SKY).max(-1) < 4).mean() > 0.6, "above is the sky"
    light, dark = (np.abs(floor - shade).max(-1) < 4 for shade in faces.FLOOR)
    assert (light | dark).mean() > 0.6, "below is the floor"
    ball = (tour[0, 5].astype(int) - (40, 90, 220))[8:30, 32:]
    assert (np.abs(ball).max(-1) < 60).mean() > 0.2, "the second court's ball is ahead on the right"
    assert list(tmp_path.iterdir()) == []


def test_the_world_is_rendered_once_and_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(world, "rendered", stripes)
    first = world.recorded(tmp_path, 10, 12, (16, 16), 0, print)
    monkeypatch.setattr(world, "rendered", None)
    again = world.recorded(tmp_path, 10, 12, (16, 16), 0, print)
    assert torch.equal(first.frames, again.frames) and first.frames.shape == (10, 12, 3, 16, 16)
    assert first.held_out.tolist() == [False] * 9 + [True]
    with pytest.raises(ValueError, match=r"holds other episodes, \[10, 12, 16, 16, 3\] of seed 0; delete it"):
        world.recorded(tmp_path, 11, 12, (16, 16), 0, print)
    with pytest.raises(ValueError, match="of seed 0; delete it"):
        world.recorded(tmp_path, 10, 12, (16, 16), 1, print)
    (tmp_path / world.FILE).write_bytes(b"")
    with pytest.raises(ValueError, match=r"world\.npz is empty; delete it"):
        world.recorded(tmp_path, 10, 12, (16, 16), 0, print)


def test_without_the_renderer_it_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "panda3d", None)
    with pytest.raises(ValueError, match=r"pip install -e '\.\[tools\]'"):
        world.recorded(tmp_path, 1, 2, (16, 16), 0, print)
    assert list(tmp_path.iterdir()) == []


def test_batches_are_clips_of_episodes_that_are_trained_on(clips):
    codes, actions = clips.batch(50, 3, seed=1, device="cpu")
    assert codes.shape == (50, 3, 4) and actions.shape == (50, 3)
    seen = {tuple(clips.frames[e, i : i + 3].flatten().tolist()) for e in (0, 2) for i in range(10)}
    assert {tuple(row.flatten().tolist()) for row in codes} <= seen
    for row, told in zip(codes, actions, strict=True):
        at = [(e, i) for e in (0, 2) for i in range(10) if torch.equal(clips.frames[e, i : i + 3].long(), row)]
        assert any(torch.equal(clips.actions[e, i : i + 3], told) for e, i in at)
    assert torch.equal(codes, clips.batch(50, 3, seed=1, device="cpu")[0])


def test_the_token_loss_counts_codes_of_later_frames_only(clips):
    model = TokenWorldModel(16, 4, 2, 2, 3, dim=32, n_layer=1, n_head=2, multiple_of=16)
    units = sequence(*clips.batch(2, 3, 1, "cpu"), 16)
    assert units.shape == (2, 15) and (units.view(2, 3, 5)[..., 4] >= 16).all()
    logits, total = model(units[:, :-1]).log_softmax(-1), []
    for row in range(2):
        for place in range(5, 15):
            if place % 5 != 4:
                total.append(-logits[row, place - 1, units[row, place]])
    torch.testing.assert_close(next_code(model, units, units), torch.stack(total).mean())


def test_entries_that_nothing_uses_start_again_where_cells_are(vq):
    pictures = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    entries = vq.quantize.entries.detach().clone()
    restarts = Restarts(vq, every=2, until=7, seed=0)  # of a run that was resumed at step 5
    for step in (5, 6):
        restarts.before(step, pictures)
        assert torch.equal(vq.quantize.entries, entries)  # it is not time yet
        restarts.after(torch.tensor([[3, 5]]))
    restarts.before(7, pictures)
    assert torch.equal(vq.quantize.entries[[3, 5]], entries[[3, 5]])
    cells = F.normalize(vq.quant_conv(vq.encoder(pictures)), dim=1).permute(0, 2, 3, 1).flatten(0, 2)
    idle = [code for code in range(16) if code not in (3, 5)]
    assert (vq.quantize.entries[idle] @ cells.T).max(-1).values.min() > 0.9999
    assert len(vq.encode(pictures).codes.unique()) > 4
    for _ in range(2):
        restarts.after(torch.tensor([[1]]))
    entries = vq.quantize.entries.detach().clone()
    restarts.before(9, pictures)
    assert torch.equal(vq.quantize.entries, entries)  # and not any more


def test_some_frames_are_read_as_drafts_of_them_begin(clips):
    """From some cell on as the frame before, and never two in a row."""
    codes, _ = clips.batch(400, 3, 1, "cpu")
    frames = codes + 16 * torch.arange(3)[:, None]  # a code says which frame it is of
    read = drafted(frames, 0.75, 1)
    assert torch.equal(read, drafted(frames, 0.75, 1)) and torch.equal(drafted(frames, 0.0, 1), frames)
    stale = read != frames
    assert not stale[:, ::2].any() and torch.equal(read[stale], frames.roll(1, 1)[stale])
    cells = stale[:, 1].sum(-1)
    assert torch.equal(stale[:, 1], torch.arange(4) >= 4 - cells[:, None])  # the last ones
    assert abs((cells > 0).float().mean() - 0.75) < 0.06
    shares = torch.bincount(cells)[1:] / (cells > 0).sum()
    wanted = torch.tensor([1 - 0.75**0.5, 0.75**0.5 - 0.5**0.5, 0.5**0.5 - 0.5, 0.5])  # whole frames most of all
    torch.testing.assert_close(shares, wanted, rtol=0, atol=0.08)


def test_some_codes_are_read_as_others(clips):
    codes, _ = clips.batch(200, 3, 1, "cpu")
    others = codes + 16
    read = mixed(codes, others, 0.5, 1)
    assert torch.equal(read, mixed(codes, others, 0.5, 1)) and torch.equal(mixed(codes, others, 0.0, 1), codes)
    assert torch.equal(read % 16, codes)
    share = (read >= 16).float().mean(-1)
    assert abs(share.mean() - 0.25) < 0.03 and share.std() > 0.2  # one share a frame
    units = sequence(codes, torch.zeros(200, 3, dtype=torch.int64), 16)
    model = TokenWorldModel(16, 4, 2, 2, 3, dim=32, n_layer=1, n_head=2, multiple_of=16)
    wrong = units.roll(1, 0)
    assert next_code(model, wrong, units) not in (next_code(model, units, units), next_code(model, wrong, wrong))


def test_codes_are_drawn_behind_true_ones(clips):
    """As often as the model says: of many rows alike, and each cell behind those that were there."""
    codes, actions = (part[:1].expand(4000, *part.shape[1:]) for part in clips.batch(1, 3, 1, "cpu"))
    model = TokenWorldModel(16, 4, 2, 2, 3, dim=32, n_layer=1, n_head=2, multiple_of=16)
    units = sequence(codes, actions, 16)
    made = drawn(model, codes, units, 7)
    assert torch.equal(made, drawn(model, codes, units, 7)) and torch.equal(made[:, 0], codes[:, 0])
    said = model(units[:1, :-1]).softmax(-1)[0]
    for frame in (1, 2):
        for cell in range(4):
            often = torch.bincount(made[:, frame, cell], minlength=16) / len(made)
            torch.testing.assert_close(often, said[frame * 5 + cell - 1], rtol=0, atol=0.04)


@pytest.mark.usefixtures("small_model")
def test_the_token_model_reads_short_clips_first_then_what_it_draws(tmp_path, monkeypatch, clips):
    seen = []

    def watched(model, read, true):
        seen.append((read.unflatten(1, (-1, 5)), true.unflatten(1, (-1, 5))))
        return next_code(model, read, true)

    monkeypatch.setattr(tokens, "next_code", watched)
    sizes = replace(
        RECIPE, token_steps=6, whole_steps=2, short_share=2 / 3, token_batch=40, short_batch=50, drafted=0.0, drawn=1.0
    )
    tokens.train_tokens(clips, sizes, tmp_path, "cpu", str)
    assert [read.shape for read, _ in seen] == [(50, 2, 5)] * 4 + [(40, 3, 5)] * 4
    assert all(torch.equal(read, true) for read, true in seen[:4])
    for read, true in seen[4:]:
        wrong = read != true
        assert wrong[:, 1:, :-1].float().mean() > 0.3 and not wrong[:, 0].any() and not wrong[..., -1].any()
    seen.clear()
    tokens.train_tokens(clips, replace(sizes, drafted=1.0, drawn=0.0), tmp_path / "drafted", "cpu", str)
    assert all(torch.equal(read[:, 1, 3], true[:, 0, 3]) for read, true in seen)  # the last code of every draft


def test_the_denoiser_is_told_what_led_to_each_frame(latents):
    made, led, noise, time = denoising.noisy(latents, RECIPE, 40, 5, "cpu")
    frames, behind = latents.batch(40, 4, 5, "cpu")
    assert torch.equal(led[:, 1:], behind[:, 1:-1])
    hidden = led[:, 0] == 4
    assert 5 < hidden.sum() < 35 and torch.equal(led[~hidden, 0], behind[~hidden, 0])
    assert torch.equal(made, frames[:, 1:]) and made.dtype == noise.dtype == torch.float32
    assert noise.shape == (40, 3, 8, 2, 2) and time.min() > 0 and time.max() < 1
    finished = time == denoising.CONTEXT_TIME
    assert 25 < finished.sum() < 55 and not finished[:, -1].any()  # half of two frames of three
    away = (noise - made).square().mean((2, 3, 4))[finished] / 2  # a normal difference has 2
    assert away.min() < 0.1 and away.max() > 2
    levels = denoising.paths(latents, RECIPE, 40, 5, "cpu")[3] * 16
    assert torch.equal(levels, levels.round()) and levels.min() == 1 and levels.max() == 16


def test_finished_frames_have_no_loss(latents, dit):
    made, led, noise, time = denoising.noisy(latents, RECIPE, 4, 5, "cpu")
    mixed = torch.lerp(made, noise, time[..., None, None, None])
    with torch.no_grad():
        error = (dit(mixed, time, led) - (noise - made)).square()
        wanted = error[time > denoising.CONTEXT_TIME].mean()
        torch.testing.assert_close(denoising.flow_loss(dit, (made, led, noise, time)), wanted)
    assert (time == denoising.CONTEXT_TIME).any()


def test_losses_fall(clips, latents, dit):
    tokens = TokenWorldModel(16, 4, 2, 2, 3, dim=32, n_layer=1, n_head=2, multiple_of=16)
    units = sequence(*clips.batch(4, 3, 1, "cpu"), 16)
    batch = denoising.paths(latents, RECIPE, 4, 1, "cpu")
    student = students.adaptable(dit, 4)
    for model, loss in (
        (tokens, lambda: next_code(tokens, units, units)),
        (dit, lambda: denoising.flow_loss(dit, batch)),
        (student, lambda: students.consistency_loss(student, dit, batch)),
    ):
        optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], 3e-3)
        before = float(loss().detach())
        for _ in range(25):
            optimizer.zero_grad()
            value = loss()
            value.backward()
            optimizer.step()
        assert float(loss().detach()) < 0.9 * before


@pytest.mark.usefixtures("small_model")
def test_everything_is_trained_shipped_and_played(tmp_path, monkeypatch):
    monkeypatch.setattr(world, "rendered", stripes)
    said = []
    out, work = tmp_path / "assets", tmp_path / "work"
    out.mkdir()
    ship.train_and_ship(RECIPE, out, work, "cpu", True, said.append)
    assert {line.split(":")[0] for line in said} >= {
        "vq",
        "vae",
        "tokens",
        "dit",
        "student",
        ship.TOKENS,
        ship.DENOISED,
    }
    assert sorted(p.name for p in out.iterdir()) == [ship.DENOISED, ship.TOKENS]
    with np.load(out / ship.DENOISED / ship.CLIPS) as held:
        frames, actions = held["frames"], held["actions"]
    assert frames.shape == (1, 12, 16, 16, 3) and actions.shape == (1, 11)
    assert not (out / ship.TOKENS / ship.CLIPS).exists()
    for name in (ship.TOKENS, ship.DENOISED):
        pipe = mmspec.Pipeline.from_pretrained(out / name)
        pipe.set_progress_bar_config(disable=True)
        made = pipe(frames[0, :1], actions[0, :4].tolist(), seed=0, output_type="pt")
        assert made.frames.shape == (1, 4, 3, 16, 16) and pipe.config.actions == list(ACTIONS)
    adapter = StudentAdapter.from_pretrained(out / ship.DENOISED / ship.STUDENT).float()
    pipe.transformer = adapter.student(pipe.transformer)
    made = pipe.use("plain")(frames[0, :1], actions[0, :4].tolist(), seed=0, output_type="pt")
    assert made.frames.isfinite().all()
    before = len(said)
    ship.train_and_ship(RECIPE, out, work, "cpu", True, said.append)  # nothing is trained again
    assert not any("step 1/" in line for line in said[before:])
