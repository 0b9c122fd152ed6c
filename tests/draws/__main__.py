"""`make fuzz SECONDS=600 SEED=3`: draws claims as long as it is told, and says what it covered and found.

A finding is printed with its seed, its simplest case as JSON (for `found.json`), and a program that shows it.
"""

import argparse
import json
import sys
import time
from collections import Counter, defaultdict

from tests.draws.drawing import CLAIMS, Result, claim_of, drawn, draws, run_case, simplest


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--claims", default=",".join(CLAIMS), help="names with commas")
    parser.add_argument("--again", metavar="CLAIM:NUMBER", help="run one draw of the seed again, and show it")
    given = parser.parse_args()
    if given.again:
        name, number = given.again.split(":")
        case = drawn(name, given.seed, int(number))
        outcome, trouble = run_case(name, case)
        show(Result(name, int(number), case, outcome, trouble or outcome), given.seed)
        sys.exit(bool(trouble))
    names, begun = given.claims.split(","), time.monotonic()
    outcomes, covered = defaultdict[str, Counter[str]](Counter), defaultdict[str, set[str]](set)
    findings = 0
    for result in draws(names, given.seed, given.seconds, given.workers):
        outcomes[result.claim][result.outcome or "FOUND"] += 1
        covered[result.claim] |= set(claim_of(result.claim).parts(result.case))
        if result.trouble:
            findings += 1
            show(result, given.seed)
    minutes = (time.monotonic() - begun) / 60
    for name in names:
        summarise(name, outcomes[name], covered[name], minutes)
    print(f"seed {given.seed}, {minutes:.1f} min, {findings} found")
    sys.exit(findings > 0)


def show(result: Result, seed: int) -> None:
    """Print one draw: what happened, its simplest case and its program."""
    died = "died" in result.trouble
    case = simplest(result.claim, result.case) if result.trouble != result.outcome and not died else result.case
    print(f"--- {result.claim} {result.number} of seed {seed}: {result.trouble}")
    print(json.dumps({"claim": result.claim, "case": case}))
    print(claim_of(result.claim).program(case), flush=True)


def summarise(name: str, outcomes: Counter[str], covered: set[str], minutes: float) -> None:
    """Print the counts of one claim, and the share of each kind of its space that was drawn."""
    total = sum(outcomes.values())
    short = Counter[str]()
    for outcome, number in outcomes.items():
        short[outcome.partition(":")[0]] += number
    counts = ", ".join(f"{number} {outcome}" for outcome, number in short.most_common())
    print(f"{name}: {total} draws, {total / max(minutes, 1e-9):.0f} a minute: {counts}")
    for outcome, number in outcomes.most_common():
        if ":" in outcome:
            print(f"  {100 * number / total:.1f} % {outcome}")
    space = defaultdict[str, set[str]](set)
    for part in claim_of(name).space():
        space[part.partition(":")[0]].add(part)
    for kind, parts in sorted(space.items()):
        seen = len(parts & covered)
        print(f"  {kind}: {seen} of {len(parts)} ({100 * seen / len(parts):.0f} %)")


if __name__ == "__main__":
    main()
