"""`mmspec play`: keys make frames in both pictures, equal ones; what a page says is checked; pages are apart."""

import base64
import io
import threading
import time

import pytest
import torch
from PIL import Image

from mmspec.serving.live.stage import Stage
from mmspec_video import commands as command
from mmspec_video.models.next_frame import NextFrameDiT
from mmspec_video.models.token_world import TokenWorldModel
from mmspec_video.pipeline import NextFramePipeline
from mmspec_video.play.session import PlaySession, World
from tests.support.live import eventually, page, served
from tests.support.worlds import tiny_vae, tiny_vq
from tests.video.conftest import lively

NAMES = ["stay", "left", "right", "go"]
WALK = ["go", "go", "left", "stay", "right", "right"]


@pytest.fixture(scope="module")
def worlds():
    tokens = TokenWorldModel(10, 4, 4, 4, frames=5, dim=32, n_layer=1, n_head=2, multiple_of=16)
    dit = NextFrameDiT(8, 4, 4, 4, patch=2, dim=32, depth=1, heads=2, frames=4, steps=2)
    first = torch.rand(3, 3, 8, 8)
    made = {
        "denoised": World(
            "denoised",
            NextFramePipeline(lively(dit), tiny_vae(), NAMES),
            first,
            [3, 1],
            {"method": "branch-prediction"},
        ),
        "codes": World(
            "codes",
            NextFramePipeline(lively(tokens, 0.6), tiny_vq(), NAMES),
            first,
            [3, 1],
            {"method": "frame-gs-sjd", "k": 8},
        ),
    }
    return made


@pytest.fixture(scope="module")
def place(worlds):
    folder = command.__file__.replace("commands.py", "play/page")
    with served([Stage("play", "Walk", folder, lambda send: PlaySession(worlds, send))]) as address:
        yield address


def begin(one, world="denoised", seed=5, depth=1):
    one.tell(type="start", world=world, seed=seed, depth=depth)
    return one.hear("begun", "error")


def walked(one, walk):
    """The frames of both pictures, key by key."""
    frames = []
    for action in walk:
        one.tell(type="key", action=action)
        both = sorted((one.hear("frame", "error") for _ in range(2)), key=lambda message: message["pane"])
        frames.append(both)
    return frames


def pictures(frames, pane=0):
    return [base64.b64decode(both[pane]["png"]) for both in frames]


@pytest.mark.parametrize("world", ["denoised", "codes"])
def test_a_key_makes_a_frame_in_both_pictures_which_is_plains(place, worlds, world):
    with page(place, "play") as one:
        listed = one.hear("worlds")
        assert [w["name"] for w in listed["worlds"]] == list(worlds) and listed["worlds"][0]["actions"] == NAMES
        assert listed["worlds"][0]["tour"] == ["go", "left"]
        begun = begin(one, world)
        assert begun["panes"] == ["plain", worlds[world].ahead["method"]]
        frames = walked(one, WALK)
    assert [both[0]["number"] for both in frames] == list(range(1, len(WALK) + 1))
    told = [message["passes"] for both in frames for message in both]
    if world == "codes":
        assert all(passes == sorted(passes) and len(passes) == 16 for passes in told)
        assert [len(set(passes)) for passes in told[::2]] == [16] * len(WALK), "plain decoding: a pass a code"
        assert sum(len(set(passes)) for passes in told[1::2]) < 16 * len(WALK)
        assert not any(message["hit"] for both in frames for message in both), "no frame was there before its key"
    else:
        assert told == [None] * 2 * len(WALK)
    assert pictures(frames, 0) == pictures(frames, 1) and all(both[0]["wait"] > 0 for both in frames)
    plain = worlds[world].pipes(1)["plain"]
    expected = [p[0] for p in plain.stream(worlds[world].beginnings[5 % 3][None], WALK, seed=5)]
    for png, picture in zip(pictures(frames), expected, strict=True):
        assert Image.open(io.BytesIO(png)).tobytes() == picture.tobytes()


def test_guessed_frames_are_hits(place):
    """An action that is repeated is guessed while the player thinks: longer and longer, on a busy machine."""
    with page(place, "play") as one:
        begin(one)
        for tenths in range(1, 100):
            one.tell(type="key", action="go")
            both = {message["pane"]: message["hit"] for message in (one.hear("frame"), one.hear("frame"))}
            assert not both[0], "plain decoding guesses nothing"
            if both[1]:
                return
            time.sleep(tenths / 10)
        raise AssertionError("no guess was ever right")


def test_two_players_at_once_and_a_walk_begun_anew(place):
    with page(place, "play") as one, page(place, "play") as other:
        begin(one), begin(other, seed=7)
        mine, theirs = walked(one, WALK[:3]), walked(other, WALK[:3])
        begin(one), begin(other)
        assert pictures(walked(one, WALK[:3])) == pictures(walked(other, WALK[:3])) == pictures(mine)
        assert pictures(theirs) != pictures(mine)


def test_threads_end_with_their_page(place):
    before = threading.active_count()
    for _ in range(3):
        with page(place, "play") as one:
            begin(one)
            walked(one, WALK[:2])
    assert eventually(lambda: not [t for t in threading.enumerate() if t.name.startswith("pane ")])
    assert eventually(lambda: threading.active_count() <= before + 8), "threads of the server's pool, no others"


@pytest.mark.slow
def test_ten_players_for_a_minute(place):
    """All at once, each with its own walk, some of which begin anew: no error, and no memory or thread that stays."""

    def play(seed, until, found):
        with page(place, "play") as one:
            begin(one, ["denoised", "codes"][seed % 2], seed)
            number = 0
            while time.monotonic() < until:
                if number % 50 == 49:
                    begin(one, ["denoised", "codes"][seed % 2], seed)
                one.tell(type="key", action=NAMES[(seed + number) % 4])
                both = [one.hear("frame", "error", "over") for _ in range(2)]
                assert {message["type"] for message in both} == {"frame"} and both[0]["png"] == both[1]["png"]
                number += 1
        found.append(number)

    def minute(seconds):
        found, until = [], time.monotonic() + seconds
        players = [threading.Thread(target=play, args=(seed, until, found)) for seed in range(10)]
        for player in players:
            player.start()
        for player in players:
            player.join()
        assert len(found) == 10 and min(found) > 5
        assert eventually(lambda: not [t for t in threading.enumerate() if t.name.startswith("pane ")])
        return int(next(line for line in open("/proc/self/status") if line.startswith("VmRSS")).split()[1])

    before, after = minute(15), minute(60)
    assert after - before < 50_000, f"{before} kB, then {after} kB"


def test_a_walk_is_saved(place):
    with page(place, "play") as one:
        begin(one)
        one.tell(type="save", **{"as": "gif"})
        assert one.hear("error")["says"] == "there is no frame to save yet"
        walked(one, WALK)
        one.tell(type="save", **{"as": "gif"})
        clip = one.hear("clip")
        gif = Image.open(io.BytesIO(base64.b64decode(clip["data"])))
        assert clip["name"] == "walk.gif" and gif.n_frames == len(WALK) and gif.size == (2 * 32 + 8, 32)


@pytest.mark.parametrize(
    ("message", "says"),
    [
        ({"type": "jump"}, "no message is called 'jump'"),
        ({}, "no message is called 'None'"),
        ({"type": "key", "action": "go"}, "there is no walk yet"),
        ({"type": "start", "world": "gone", "seed": 1, "depth": 1}, "no world is called 'gone'"),
        ({"type": "start", "world": ["codes"], "seed": 1, "depth": 1}, "no world is called"),
        ({"type": "start", "world": "codes", "seed": -1, "depth": 1}, "seed is a whole number from 0 to"),
        ({"type": "start", "world": "codes", "seed": 1, "depth": 99}, "depth is a whole number from 0 to 4, not 99"),
        ({"type": "start", "world": "codes", "seed": True, "depth": 1}, "seed is a whole number"),
        ({"type": "save", "as": "exe"}, "no format is called 'exe'"),
    ],
)
def test_what_a_page_says_is_checked(place, message, says):
    with page(place, "play") as one:
        one.tell(**message)
        assert says in one.hear("error")["says"]


def test_keys_of_a_walk_are_its_actions_and_not_too_many(place):
    with page(place, "play") as one:
        begin(one)
        one.tell(type="key", action="fly")
        assert "no action is called 'fly'" in one.hear("error")["says"]
        for _ in range(60):
            one.tell(type="key", action="go")
        assert "too many keys wait" in one.hear("error")["says"]
