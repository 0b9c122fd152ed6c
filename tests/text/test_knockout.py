"""The race of `mmspec tune`, on a clock of its own: who leaves, who goes on, and what may be kept."""

import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from mmspec.bench.race import Run
from mmspec.kits.text import tuning
from mmspec.kits.text.knockout import EVERY, FINALISTS, JUDGED, LEAST, MOST, Race, Racer, faster
from mmspec.kits.text.tuning import NOW, ranked, verdict
from mmspec.report.result import PLAIN

PROMPTS = 6
Speed = Callable[[int, int], float]
"""Seconds of a token, by prompt and run."""


@dataclass
class World:
    """A clock that runs while somebody decodes, and the ways that do."""

    now: float = 0.0
    said: list[tuple[float, str]] = field(default_factory=list)
    ran: list[tuple[str, float, int, int]] = field(default_factory=list)  # name, temperature, tokens, prompt

    def racer(self, name: str, speed: Speed | float, **how: Any) -> Racer:
        runs = itertools.count()

        def way(temperature: float, new: int) -> Callable[[int], Run]:
            def decode(task: int) -> Run:
                each = speed if isinstance(speed, float) else speed(task, next(runs))
                self.now += each * new
                self.ran.append((name, temperature, new, task))
                return Run(each * new, [])

            return decode

        return Racer(way, **how)

    def race(self, minutes: float = 10.0, most: int = 96, **ways: Speed | float) -> Race:
        ways = {NOW: ways.pop("now", 0.1), PLAIN: ways.pop("plain", 0.1), **ways}
        racers = {name: self.racer(name, speed, stays=name in (NOW, PLAIN)) for name, speed in ways.items()}
        ours = [name for name in ways if name != NOW and name not in tuning.PEERS]
        say = lambda line: self.said.append((self.now, line))  # noqa: E731
        race = Race(racers, range(PROMPTS), (ours, list(tuning.PEERS)), say, lambda: self.now)
        race.run(minutes, most)
        return race


def kept(race: Race) -> tuple[str | None, str]:
    return verdict(race, {name: {"method": name} for name in race.groups[0]})


def noisy(each: float, seed: int, by: float = 0.1) -> Speed:
    drawn = random.Random(seed)
    return lambda task, run: each * drawn.lognormvariate(0.0, by)


def test_ranges() -> None:
    assert faster([1.0] * 6, [2.0] * 6, 6) == pytest.approx((2, 2, 2))
    one = faster([1.0], [3.0], 6)
    assert one.middle == pytest.approx(3) and one.low == 0 and str(one) == "3.00 ×"
    uneven = faster([1.0] * 6, [0.9, 0.9, 0.9, 0.9, 0.9, 9.0], 6)
    assert uneven.low < 1 < uneven.middle < uneven.high, "one prompt of six is no rule"
    again = faster([1.0] * 12, [0.9, 0.9, 0.9, 0.9, 0.9, 9.0] * 2, 6)
    assert again == pytest.approx(uneven), "nor if it is decoded twice"
    assert faster([1.0, 1.0, 1.0], [1.18, 1.2, 1.22], 1).low > 1, "of one prompt, runs tell"


def test_all_prompts_are_decoded_by_turns_and_losers_leave_early() -> None:
    world = World()
    race = world.race(60.0, fast=0.05, slow=0.15, middling=0.11)
    counted = [ran for ran in world.ran if ran[2] == race.new]
    first = counted[: 5 * 3]
    assert [task for *_, task in first] == [0] * 5 + [1] * 5 + [2] * 5
    assert len({first[5 * task][0] for task in range(3)}) == 3, "who begins rotates"
    assert {temperature for _, temperature, _, task in first if task == 1} == {0.7}
    assert len(race.racers["slow"].seconds) == 3 and len(race.racers["fast"].seconds) == PROMPTS * (1 + MOST)
    assert kept(race) == ("fast", "auto takes fast now: fast, 2.00 × (2.00 to 2.00) as fast as before.")
    rows = {row[0]: row[1:] for row in ranked(race)}
    assert next(iter(rows)) == "fast" and rows["fast"][::2] == ("2.00 × (2.00 to 2.00)", "42")
    assert rows["slow"][2] == "3, then it left"


def test_noise_alone_is_never_kept() -> None:
    """Twelve ways that are the same one, on a machine whose runs differ by a fifth."""
    found = []
    for seed in range(20):
        ways = {f"way {number}": noisy(0.1, 100 * seed + number, 0.2) for number in range(12)}
        race = World().race(now=noisy(0.1, seed + 7000, 0.2), plain=noisy(0.1, seed + 9000, 0.2), **ways)
        found.append(kept(race))
    assert sum(name is not None for name, _ in found) <= 1
    assert sum("Too close to say: auto stays as it was" in said for _, said in found) >= 19


def test_what_is_faster_is_kept_in_spite_of_noise_every_time() -> None:
    for seed in range(10):
        ways = {f"way {number}": noisy(0.1, 100 * seed + number) for number in range(12)}
        race = World().race(now=noisy(0.1, seed + 7000), plain=noisy(0.1, seed + 9000), fast=noisy(0.075, seed), **ways)
        assert kept(race)[0] == "fast"


def test_repeats_that_disagree_keep_nothing() -> None:
    """A disturbance while one round lasts: the mean is far ahead, and one round says the opposite."""
    first = 2 + PROMPTS  # runs before the rounds that decide

    def sometimes(task: int, run: int) -> float:
        return 0.02 if run < first + PROMPTS * (MOST - 1) else 0.105

    race = World().race(60.0, sometimes=sometimes)
    assert race.over("sometimes", NOW).low > 1 and kept(race)[0] is None


def test_nothing_pays() -> None:
    race = World().race(now=0.2, lookup=0.15, tree=0.19)
    assert kept(race)[0] == PLAIN and "auto decodes plainly now" in kept(race)[1]


def test_transformers_own_best_is_named_where_it_wins() -> None:
    peer, other = list(tuning.PEERS)[:2]
    race = World().race(fast=0.08, **{peer: 0.05, other: 0.06})
    name, said = kept(race)
    assert name == "fast" and f"transformers' own {peer} is faster still: 1.60 ×" in said and other not in said
    assert "transformers" not in kept(World().race(fast=0.04, **{peer: 0.05}))[1]
    assert f"transformers' own {peer} is faster" in kept(World().race(**{peer: 0.05}))[1]


@pytest.mark.parametrize("minutes", [2.0, 5.0, 30.0])
def test_outputs_are_as_short_as_the_time_asks(minutes: float) -> None:
    world = World()
    race = world.race(minutes, **{f"way {number}": 0.02 + number / 1000 for number in range(12)})
    assert world.now <= 60 * minutes * 1.2 and race.rounds >= JUDGED
    assert LEAST <= race.new <= 96 and (race.new == 96) == (minutes == 30.0)
    assert len(race.left) == 2 + FINALISTS


def test_too_little_time_keeps_nothing() -> None:
    world = World()
    race = world.race(1.0, slow=2.0, slower=3.0, fast=1.0)
    name, said = kept(race)
    assert name is None and "Too little time to say: auto stays as it was" in said
    asked = float(said.split("--minutes ")[1].split()[0])
    assert World().race(asked, slow=2.0, slower=3.0, fast=1.0).rounds >= JUDGED


def test_a_line_comes_before_the_first_minute_is_over() -> None:
    world = World()
    world.race(30.0, **{f"way {number}": 0.2 + number / 100 for number in range(12)})
    assert world.said[0] == (0.0, "first runs of 14 ways, which are not counted")
    times = [at for at, _ in world.said]
    longest = 96 * 0.4
    assert all(later - earlier <= EVERY + longest for earlier, later in itertools.pairwise(times))


def test_who_fails_leaves_but_not_plain_decoding() -> None:
    def fails(task: int, run: int) -> float:
        raise RuntimeError("no such\nkernel")

    race = World().race(broken=fails, fast=0.05)
    assert {row[0]: row[3] for row in ranked(race)}["broken"] == "RuntimeError: no such" and "broken" not in race.left
    with pytest.raises(RuntimeError, match="no such"):
        World().race(plain=fails)


def test_one_prompt_is_judged_by_its_runs() -> None:
    world = World()
    racers = {
        name: world.racer(name, each, stays=name != "fast") for name, each in ((NOW, 0.1), (PLAIN, 0.1), ("fast", 0.05))
    }
    race = Race(racers, [0], ([PLAIN, "fast"],), lambda line: None, lambda: world.now)
    race.run(1.0, 96)
    assert kept(race)[0] == "fast"
