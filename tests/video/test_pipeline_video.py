"""`NextFramePipeline`: the same frames at once or one by one, from a list or a player; misfits are refused."""

import logging
import os
import signal
import threading

import numpy as np
import pytest
import torch
from PIL import Image

import mmspec
from mmspec_video.call import frames_in
from mmspec_video.clips import save_clip
from mmspec_video.models.next_frame import NextFrameDiT
from mmspec_video.models.oasis import OasisDiT
from mmspec_video.models.oasis_vae import OasisVAE
from mmspec_video.models.token_world import TokenWorldModel
from mmspec_video.pipeline import NextFramePipeline
from tests.support.worlds import tiny_vae, tiny_vq

NAMES = ["stay", "left", "right", "go"]
TRACE = ["go", "go", "left", 0, 3]
KINDS = ("codes", "denoised", "published")


def lively(model, spread):
    generator = torch.Generator().manual_seed(1)
    for weights in model.parameters():
        weights.data.copy_(torch.randn(weights.shape, generator=generator) * spread)
    return model.eval()


def quiet(pipe):
    pipe.set_progress_bar_config(disable=True)
    return pipe


@pytest.fixture(scope="module")
def pipes():
    tokens = TokenWorldModel(10, 4, 4, 4, frames=5, dim=32, n_layer=1, n_head=2, multiple_of=16)
    dit = NextFrameDiT(8, 4, 4, 4, patch=2, dim=32, depth=1, heads=2, frames=4, steps=2)
    sizes = dict(input_h=4, input_w=4, in_channels=3, hidden_size=32, depth=1, num_heads=2, external_cond_dim=5)
    vae = OasisVAE(3, 8, 8, 2, enc_dim=32, enc_depth=1, enc_heads=2, dec_dim=32, dec_depth=1, dec_heads=2)
    oasis = NextFramePipeline(
        lively(OasisDiT(**sizes, max_frames=4), 0.1), lively(vae, 0.1), NAMES, 20, torch.eye(4, 5).tolist()
    )
    made = {
        "codes": NextFramePipeline(lively(tokens, 0.6), tiny_vq(), NAMES, fps=10),
        "denoised": NextFramePipeline(lively(dit, 0.15), tiny_vae(), NAMES),
        "published": oasis,
    }
    return {name: quiet(pipe) for name, pipe in made.items()}


@pytest.fixture(params=KINDS)
def pipe(request, pipes):
    return pipes[request.param]


def picture(n=1, seed=0):
    return torch.rand(n, 3, 8, 8, generator=torch.Generator().manual_seed(seed))


def steps(pipe):
    return {} if isinstance(pipe.transformer, TokenWorldModel) else {"num_inference_steps": 2}


def test_all_at_once_one_by_one_from_a_list_and_from_a_player(pipe):
    pipe.use("auto")
    how = {"seed": 3, "output_type": "pt"} | steps(pipe)
    output = pipe(picture(), TRACE, **how)
    assert output.frames.shape == (1, 5, 3, 8, 8) and output.frames.min() >= 0 and output.frames.max() <= 1
    assert output.actions.tolist() == [[3, 3, 1, 0, 3]]
    assert output.report.exactness == "invariant"
    streamed = torch.stack(list(pipe.stream(picture(), TRACE, **how)), 1)
    assert torch.equal(streamed, output.frames)
    seen = []

    def player(number, frames):
        seen.append(frames)
        return TRACE[number]

    played = pipe(picture(), player, num_frames=5, **how)
    assert torch.equal(played.frames, output.frames) and torch.equal(played.actions, output.actions)
    expected = torch.cat([picture()[None], output.frames[:, :-1]], 1)
    torch.testing.assert_close(torch.stack(seen, 1), expected)
    plain = pipe.use("plain")(picture(), TRACE, **how)
    assert torch.equal(plain.frames, output.frames)


@pytest.mark.parametrize("kind", ["denoised", "published"])
def test_frames_are_made_ahead_while_the_player_thinks(pipes, kind, thinker):
    pipe = pipes[kind].use("branch-prediction", k=1)
    told = ["go", "go", "go", "left", "go", "go"]
    ahead = pipe(picture(), thinker(pipe, told), num_frames=6, seed=1, output_type="pt")
    plain = pipe.use("plain")(picture(), told, seed=1, output_type="pt")
    assert torch.equal(ahead.frames, plain.frames)
    assert ahead.report.accepted >= 2 and ahead.discarded == 5 - ahead.report.accepted and plain.discarded == 0


def test_a_player_who_is_quick_waits_for_nothing(pipes):
    pipe = pipes["denoised"].use("branch-prediction", k=2)
    output = pipe(picture(), lambda number, frames: number % 4, num_frames=5, seed=1, output_type="pt")
    plain = pipe.use("plain")(picture(), [0, 1, 2, 3, 0], seed=1, output_type="pt")
    assert torch.equal(output.frames, plain.frames)


def quits_by(end):
    """A player who follows the trace and ends it so."""

    def player(number, frames):
        if number < LAST:
            return TRACE[number]
        if end is None:
            return None
        raise end

    return player


LAST = 3
METHODS = ("plain", "auto")


@pytest.mark.thinned
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("end", [None, StopIteration(), KeyboardInterrupt()], ids=str)
def test_a_player_may_quit_and_nothing_is_lost(pipe, method, end, recwarn):
    pipe.use(method)
    how = {"seed": 3, "output_type": "pt"} | steps(pipe)
    whole = pipe(picture(), TRACE[:LAST], **how)
    walk = pipe(picture(), quits_by(end), num_frames=5, **how)
    assert torch.equal(walk.frames, whole.frames) and torch.equal(walk.actions, whole.actions)
    assert walk.report.emitted == whole.report.emitted and walk.report.rounds >= LAST - 1
    assert [str(one.message) for one in recwarn if "CTRL-C" in str(one.message)] == (
        ["stopped by CTRL-C after 3 of 5 frames"] if isinstance(end, KeyboardInterrupt) else []
    )
    if not isinstance(end, KeyboardInterrupt):
        assert torch.equal(
            torch.stack(list(pipe.stream(picture(), quits_by(end), num_frames=5, **how)), 1), walk.frames
        )


def test_a_player_may_quit_at_once(pipe, tmp_path):
    shapes = {"pt": (2, 0, 3, 8, 8), "np": (2, 0, 8, 8, 3)}
    frames = torch.stack([picture(seed=1), picture(seed=2)])
    for kind in ("pil", "np", "pt", "latent"):
        walk = pipe(frames, lambda number, frames: None, num_frames=2, seed=0, output_type=kind)
        assert walk.actions.shape == (2, 0) and walk.report.rounds == walk.discarded == 0 and walk.report.rows == 2
        assert walk.frames == [[], []] if kind == "pil" else walk.frames.shape[:2] == (2, 0)
        assert kind not in shapes or walk.frames.shape == shapes[kind]
        assert "0" in str(walk.report)
    with pytest.raises(ValueError, match="there are no frames to write"):
        pipe(picture(), lambda number, frames: None, num_frames=2, seed=0).save(tmp_path / "a.gif")


@pytest.mark.thinned
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("does", [ZeroDivisionError("the player's own"), 9, [1, 2], 1.5])
def test_what_a_player_does_wrong_is_raised_and_the_frames_are_kept(pipe, method, does):
    pipe.use(method)
    how = {"seed": 3, "output_type": "pt"} | steps(pipe)

    def player(number, frames):
        if number < LAST:
            return TRACE[number]
        if isinstance(does, Exception):
            raise does
        return does

    with pytest.raises((ZeroDivisionError, ValueError, TypeError)) as raised:
        pipe(picture(), player, num_frames=5, **how)
    assert not isinstance(does, Exception) or raised.value is does
    assert any("3 of 5 frames were made before" in note for note in raised.value.__notes__)
    kept = pipe.unfinished
    assert torch.equal(kept.frames, pipe(picture(), TRACE[:LAST], **how).frames) and kept.actions.tolist() == [
        [3, 3, 1]
    ]
    assert pipe.unfinished is None, "of the last call"


@pytest.mark.parametrize("kind", ["denoised", "published"])
def test_ctrl_c_does_not_wait_for_a_player_who_thinks(pipes, kind):
    """Of events: the player begins to think, CTRL-C comes, and the call is over while the player still thinks."""
    pipe = pipes[kind].use("branch-prediction", k=1)
    how, free, thought = {"seed": 3, "output_type": "pt"}, threading.Event(), []

    def player(number, frames):
        if number < LAST:
            return TRACE[number]
        assert threading.current_thread().daemon, "Python's end does not wait for them either"
        os.kill(os.getpid(), signal.SIGINT)
        thought.append(free.wait())
        return 0

    # A shell that runs the suite in the background makes its children deaf to CTRL-C.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.warns(UserWarning, match="stopped by CTRL-C after 3 of 5 frames"):
            walk = pipe(picture(), player, num_frames=5, **how)
        assert thought == []
    finally:
        free.set()
        signal.signal(signal.SIGINT, before)
    assert torch.equal(walk.frames, pipe.use("plain")(picture(), TRACE[:LAST], **how).frames)


def test_rows_seeds_and_generators(pipe):
    pipe.use("auto")
    how = {"output_type": "pt"} | steps(pipe)
    both = torch.stack([picture(seed=1), picture(seed=2)])
    together = pipe(both, [["go", "left"], ["stay", "go"]], seed=[5, 6], **how).frames
    for row, trace in enumerate((["go", "left"], ["stay", "go"])):
        alone = pipe(both[row], trace, seed=[5 + row], **how).frames
        torch.testing.assert_close(alone[0], together[row], rtol=1e-4, atol=1e-4)
    first, again, other = (
        pipe(picture(), ["go"] * 2, generator=torch.Generator().manual_seed(s), **how).frames for s in (1, 1, 2)
    )
    assert torch.equal(first, again) and not torch.equal(first, other)


def test_several_first_frames_and_their_actions(pipe):
    how = {"seed": 1, "output_type": "pt"} | steps(pipe)
    frames = picture(3)
    one, other = (pipe(frames, ["go"], past_actions=past, **how).frames for past in (["go", "left"], ["left", "left"]))
    assert not torch.equal(one, other)
    with pytest.raises(ValueError, match="3 first frames have 2 actions between them; past_actions= has 0"):
        pipe(frames, ["go"], **how)


def test_kinds_of_frames_and_of_output(pipes):
    pipe = pipes["denoised"]
    bytes_ = (picture() * 255).round().to(torch.uint8)
    image = Image.fromarray(bytes_[0].permute(1, 2, 0).numpy())
    given = [image, [image], np.asarray(image), np.asarray(image)[None], bytes_, bytes_[None]]
    wanted = bytes_[None].float() / 127.5 - 1
    assert all(torch.equal(frames_in(frames, (8, 8)), wanted) for frames in given)
    output = pipe(image, [1, 2], seed=1)
    assert [len(row) for row in output.frames] == [2] and output.frames[0][0].size == (8, 8)
    array = pipe(image, [1, 2], seed=1, output_type="np").frames
    assert array.shape == (1, 2, 8, 8, 3)
    assert np.array_equal((array[0, 1] * 255).round().astype("uint8"), np.asarray(output.frames[0][1]))
    assert pipe(image, [1, 2], seed=1, output_type="latent").frames.shape == (1, 2, 8, 4, 4)
    assert pipes["codes"](image, [1, 2], seed=1, output_type="latent").frames.shape == (1, 2, 16)
    frames, report, actions, discarded, fps = pipe(image, [1], seed=1, return_dict=False)
    assert len(frames[0]) == 1 and report.rows == 1 and actions.tolist() == [[1]] and (discarded, fps) == (0, 20)


def test_a_clip_is_written_whole_or_not_at_all(pipes, tmp_path, monkeypatch):
    output = pipes["codes"](picture(), [1, 2, 3], seed=1)
    path = output.save(tmp_path / "a.gif")
    with Image.open(path) as clip:
        assert (clip.n_frames, clip.info["duration"]) == (3, 100)  # the model's 10 frames a second
    as_arrays = pipes["codes"](picture(), [1, 2, 3], seed=1, output_type="np").save(tmp_path / "b.gif")
    assert as_arrays.read_bytes() == path.read_bytes()

    def no_codec(frames, file, **how):
        open(file, "wb").close()
        raise ImportError("no imageio")

    monkeypatch.setattr("mmspec_video.clips.export_to_video", no_codec)
    with pytest.warns(UserWarning, match=r"nothing here can write MP4 .* wrote .*c\.gif"):
        assert output.save(tmp_path / "c.mp4") == tmp_path / "c.gif"
    monkeypatch.setattr("mmspec_video.clips.export_to_video", lambda f, file, **how: open(file, "wb").close())
    assert output.save(tmp_path / "d.mp4", fps=5) == tmp_path / "d.mp4"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.gif", "b.gif", "c.gif", "d.mp4"]
    for path, fps, message in (
        ("e.avi", 10, r"one of \.gif, \.mp4, not \.avi"),
        ("no/e.gif", 10, "there is no folder"),
        ("e.gif", 0, "fps is 1 to 100"),
    ):
        with pytest.raises(ValueError, match=message):
            output.save(tmp_path / path, fps=fps)
    with pytest.raises(ValueError, match="there are no frames"):
        save_clip([], tmp_path / "e.gif", 10)
    with pytest.raises(ValueError, match="latents are no pictures"):
        pipes["codes"](picture(), [1], seed=1, output_type="latent").save(tmp_path / "e.gif")


def test_a_clip_is_written_as_mp4(pipes, tmp_path):
    imageio = pytest.importorskip("imageio")
    pytest.importorskip("imageio_ffmpeg")
    output = pipes["codes"](picture(), [1, 2, 3], seed=1)
    path = output.save(tmp_path / "a.mp4", fps=5)
    with imageio.get_reader(path) as clip:
        assert (clip.count_frames(), clip.get_meta_data()["fps"], clip.get_data(2).shape) == (3, 5, (8, 8, 3))
    assert list(tmp_path.iterdir()) == [path]


BAD = [
    (dict(actions=[1, 4]), "there is no action 4; there is 0 stay, 1 left"),
    (dict(actions=["jump"]), "jump"),
    (dict(actions=[True]), "there is no action True"),
    (dict(actions=[]), "num_frames must be at least 1, got 0"),
    (dict(actions=[[1], [2]]), "2 sequences of actions for 1 rows"),
    (dict(actions=[[1, 2], [2]]), "2 sequences"),
    (dict(num_frames=3), "2 actions lead to 2 frames, not to 3"),
    (dict(num_frames=0), "num_frames must be at least 1, got 0"),
    (dict(actions=lambda number, frames: 1), "say num_frames="),
    (dict(first_frames=torch.rand(1, 3, 8, 9)), "are 8 × 8 pixels of 3 colours, not 8 × 9 of 3"),
    (dict(first_frames=torch.rand(1, 4, 8, 8)), "not 8 × 8 of 4"),
    (dict(first_frames=torch.zeros(1, 3, 8, 8, dtype=torch.int64)), r"uint8, or floats in \[0, 1\], not int64"),
    (dict(first_frames=torch.rand(1, 3, 8, 8) * 255), r"in \[0, 1\]; these are in"),
    (dict(first_frames=torch.full((1, 3, 8, 8), torch.nan)), r"these are in \[nan, nan\]"),
    (dict(first_frames=torch.rand(0, 3, 8, 8)), "at least one"),
    (dict(first_frames=[]), "at least one"),
    (dict(first_frames=torch.rand(5, 3, 8, 8), past_actions=[1] * 4), "begins with 1 to"),
    (dict(output_type="gif"), "output_type is one of pil, np, pt, latent"),
    (dict(k=-1), "k must be an integer >= 0"),
    (dict(k="1"), "k must be an integer, got '1'"),
    (dict(num_frames="2"), "num_frames must be an integer, got '2'"),
    (dict(actions=3), "actions are a sequence of numbers or names, one for every next frame, not 3"),
    (dict(actions="left"), "actions are a sequence of numbers or names, one for every next frame, not 'left'"),
    (dict(seed="1"), "seed must be an integer, got '1'"),
]


@pytest.mark.parametrize(("changed", "message"), BAD)
def test_bad_input_is_refused_before_anything_runs(pipe, changed, message, monkeypatch):
    def never(*args, **kwargs):
        raise AssertionError("a frame was made")

    monkeypatch.setattr("mmspec_video.playing.frames.FramePlay.frame", never)
    monkeypatch.setattr("mmspec_video.playing.tokens.TokenPlay.frame", never)
    how = {"first_frames": picture(), "actions": [1, 2], "seed": 0} | changed
    for call in (pipe, pipe.stream):
        with pytest.raises(ValueError, match=message):
            call(**how)


def test_what_only_the_other_kind_of_model_has(pipes):
    with pytest.raises(ValueError, match="num_inference_steps, cache: this model makes frames of codes"):
        pipes["codes"](picture(), [1], num_inference_steps=3, cache="exact")
    with pytest.raises(ValueError, match="temperature: this model makes frames by denoising"):
        pipes["denoised"](picture(), [1], temperature=0.5)
    with pytest.raises(ValueError, match="cache is one of exact, streaming, none"):
        pipes["denoised"](picture(), [1], cache="some")
    with pytest.raises(ValueError, match="num_inference_steps must be at least 1"):
        pipes["denoised"](picture(), [1], num_inference_steps=0)
    with pytest.raises(TypeError, match="pictures of PIL, an array or a tensor, not str"):
        pipes["denoised"]("a.png", [1])


def test_a_truth_of_another_length_is_refused(pipe):
    with pytest.raises(ValueError, match="2 actions came for the next frame of 1 rows"):
        pipe(picture(), lambda number, frames: [1, 2], num_frames=2, seed=0)


def test_parts_that_do_not_fit_are_refused(pipes):
    vq, tokens = pipes["codes"].vae, pipes["codes"].transformer
    with pytest.raises(ValueError, match="the transformer knows 11 codes, the VQ 10"):
        NextFramePipeline(TokenWorldModel(11, 4, 4, 4, dim=32, n_layer=1, n_head=2), vq)
    vae = pipes["denoised"].vae
    with pytest.raises(ValueError, match="latents of 3 channels, and of 8"):
        NextFramePipeline(pipes["published"].transformer, vae)
    with pytest.raises(ValueError, match="frames of codes want a LlamaGenVQ, and not AutoencoderKL"):
        NextFramePipeline(tokens, vae)
    with pytest.raises(ValueError, match="want an AutoencoderKL or an OasisVAE, and not LlamaGenVQ"):
        NextFramePipeline(pipes["denoised"].transformer, vq)
    with pytest.raises(ValueError, match="2 names for 4 actions"):
        NextFramePipeline(tokens, vq, ["a", "b"])
    with pytest.raises(ValueError, match="presets of actions have 25 numbers: give action_vectors="):
        NextFramePipeline(pipes["published"].transformer, pipes["published"].vae)


def test_a_saved_pipeline_knows_its_two_actions_and_says_nothing(tmp_path, caplog):
    torch.manual_seed(0)
    tokens = TokenWorldModel(16, 2, 2, 2, 3, dim=32, n_layer=1, n_head=2, multiple_of=16)
    vq = tiny_vq(16)
    logger = logging.getLogger("diffusers")
    logger.addHandler(caplog.handler)
    try:
        NextFramePipeline(tokens, vq, ("left", "right")).save_pretrained(tmp_path)  # as a library and a class would be
        loaded = quiet(mmspec.Pipeline.from_pretrained(tmp_path))
    finally:
        logger.removeHandler(caplog.handler)
    assert loaded.config.actions == ["left", "right"] and not caplog.records


def test_a_saved_pipeline_makes_the_same_frames(pipe, tmp_path):
    pipe.use("auto")
    how = {"seed": 2, "output_type": "pt"}
    before = pipe(picture(), TRACE, **how).frames
    pipe.save_pretrained(tmp_path)
    loaded = quiet(mmspec.Pipeline.from_pretrained(tmp_path))
    assert loaded.config.actions == NAMES and type(loaded) is NextFramePipeline
    assert torch.equal(loaded(picture(), TRACE, **how).frames, before)
