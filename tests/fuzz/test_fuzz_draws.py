"""Claims about many (`tests/draws`): a fixed draw of each, what longer draws once found, and the drawing itself."""

import json
import random
from collections.abc import Iterator

import pytest

from tests.draws import drawing
from tests.draws.claim import Broken, Case, Claim

NAMES = [name for name in drawing.CLAIMS if (drawing.FOUND.parent / f"{name}.py").exists()]
FIXED = [(name, number) for name in NAMES for number in range(drawing.claim_of(name).fixed)]


@pytest.mark.parametrize("name,number", FIXED)
def test_a_fixed_draw(name: str, number: int) -> None:
    case = drawing.drawn(name, 0, number)
    _, trouble = drawing.run_case(name, case)
    assert not trouble, f"{trouble}\n{json.dumps(case)}\n{drawing.claim_of(name).program(case)}"


@pytest.mark.parametrize("found", json.loads(drawing.FOUND.read_text()), ids=lambda found: found["was"])
def test_what_was_found(found: dict) -> None:
    _, trouble = drawing.run_case(found["claim"], found["case"])
    assert not trouble, trouble


@pytest.mark.parametrize("name", NAMES)
def test_a_draw_is_shown_as_a_program(name: str) -> None:
    """It compiles, is short, and is inside of the space that is counted."""
    claim, covered = drawing.claim_of(name), set[str]()
    for number in range(20):
        case = drawing.drawn(name, 0, number)
        program = claim.program(case)
        compile(program, name, "exec")
        assert len(program.strip().splitlines()) <= 15, program
        covered |= set(claim.parts(case))
    assert covered and covered <= set(claim.space())


class _Sums(Claim):
    """A claim that is wrong: no two numbers make more than 12."""

    name = "sums"
    needed = frozenset({"first", "second"})

    def draw(self, dice: random.Random) -> Case:
        return {"first": dice.randrange(10), "second": dice.randrange(10), "third": 1}

    def run(self, case: Case) -> str:
        if case["first"] + case["second"] > 12:
            raise Broken("more than 12")
        return "equal"

    def space(self) -> Iterator[str]:
        yield from (f"first:{number}" for number in range(10))

    def parts(self, case: Case) -> Iterator[str]:
        yield f"first:{case['first']}"

    def program(self, case: Case) -> str:
        return f"print({case['first']} + {case['second']})"


def test_a_finding_is_simplified(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drawing, "claim_of", lambda name: _Sums())
    results = [drawing.one("sums", 0, number) for number in range(40)]
    found = next(result for result in results if result.trouble)
    assert any(result.outcome == "equal" for result in results)
    assert drawing.one("sums", 0, found.number) == found, "a seed is a case"
    simple = drawing.simplest("sums", found.case)
    assert simple.keys() == {"first", "second"} and drawing.run_case("sums", simple) == ("", "more than 12")
