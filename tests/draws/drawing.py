"""Draws of claims from seeds: one case, its simplest form that still fails, and as many as a number of seconds has.

Each worker is a process; one that dies or hangs is a finding as well.
"""

import importlib
import json
import signal
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from tests.draws.claim import Broken, Case, Claim, Dice

CLAIMS = ("targets", "halves", "heads", "pictures", "folders", "trainers")
FOUND = Path(__file__).with_name("found.json")
LONGEST, HANGS = 120, 1200
"""Seconds of computing, and by the clock, after which a case hangs: other processes may have the machine."""
TRIES = 40
"""Simpler cases that are tried of one that fails."""


@dataclass
class Result:
    """What became of one draw: `outcome` of a case that holds, or `trouble`."""

    claim: str
    number: int
    case: Case = field(default_factory=dict)
    outcome: str = ""
    trouble: str = ""


@cache
def claim_of(name: str) -> Claim:
    """The claim of `tests/draws/<name>.py`."""
    made: Claim = importlib.import_module(f"tests.draws.{name}").CLAIM
    return made


def drawn(name: str, seed: int, number: int) -> Case:
    """The case of a seed and number, as it would come out of a file."""
    case: Case = json.loads(json.dumps(claim_of(name).draw(Dice.of(f"{name} {seed}", number))))
    return case


def run_case(name: str, case: Case) -> tuple[str, str]:
    """Outcome and trouble (`""`: none) of a case; every error that a claim does not expect is trouble."""

    def hangs(*_: Any) -> None:
        raise Broken(f"it took longer than {LONGEST} seconds of computing, or {HANGS} by the clock")

    before = {kind: signal.signal(kind, hangs) for kind in (signal.SIGPROF, signal.SIGALRM)}
    signal.setitimer(signal.ITIMER_PROF, LONGEST)
    signal.alarm(HANGS)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return claim_of(name).run(case), ""
    except Broken as error:
        return "", str(error)
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        return "", f"{type(error).__name__}: {error} ({Path(where.filename).name}:{where.lineno})"
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.alarm(0)
        for kind, handler in before.items():
            signal.signal(kind, handler)


def simplest(name: str, case: Case) -> Case:
    """The case with as little in it as still fails."""
    tries, again = TRIES, True
    while again:
        again = False
        for other in claim_of(name).simpler(case):
            tries -= 1
            if tries < 0:
                return case
            if run_case(name, other)[1]:
                case, again = other, True
                break
    return case


def one(name: str, seed: int, number: int) -> Result:
    """Draw and run one case, in a worker."""
    import torch
    from transformers.utils import logging

    torch.set_num_threads(1)
    logging.set_verbosity_error()
    case = drawn(name, seed, number)
    outcome, trouble = run_case(name, case)
    return Result(name, number, case, outcome, trouble)


def draws(names: list[str], seed: int, seconds: float, workers: int) -> Iterator[Result]:
    """Results as they come, for so many seconds; the claim that is furthest behind its share is next."""
    spent, numbers = Counter[str](), Counter[str]()
    running: dict[Future[Result], tuple[str, int, float]] = {}
    end = time.monotonic() + seconds
    pool = ProcessPoolExecutor(workers, get_context("spawn"))
    while running or time.monotonic() < end:
        while len(running) < workers and time.monotonic() < end:
            name = min(names, key=lambda each: spent[each] / claim_of(each).share)
            spent[name] += 0.05  # so that workers do not all take the same one
            running[pool.submit(one, name, seed, numbers[name])] = name, numbers[name], time.monotonic()
            numbers[name] += 1
        done, _ = wait(running, return_when=FIRST_COMPLETED)
        for future in done:
            name, number, begun = running.pop(future)
            spent[name] += time.monotonic() - begun
            try:
                yield future.result()
            except BrokenProcessPool:  # all that ran died with it, and is named
                pool, (mine, running) = ProcessPoolExecutor(workers, get_context("spawn")), (running, {})
                for broken in [(name, number), *[(each, at) for each, at, _ in mine.values()]]:
                    yield Result(*broken, drawn(broken[0], seed, broken[1]), trouble="a worker died over it")
                break
    pool.shutdown()
