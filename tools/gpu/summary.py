"""The lines of all steps as one short table: `python3 -m tools.gpu.summary FOLDER`."""

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

Line = dict[str, Any]
EQUAL = (
    "model", "mode", "what", "method", "law", "equal", "texts", "calls", "tokens_and_generator_equal",
    "keys_apart_last", "acceptance_length", "compiled",
)  # fmt: skip
HIDDEN = ("t", "step", "section")


def read(folder: Path) -> list[Line]:
    path = folder / "lines.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []


def shown(line: Line, names: Iterable[str]) -> str:
    return "   " + " ".join(f"{name}={line[name]}" for name in names if name in line)


def rest(line: Line) -> str:
    return shown(line, (name for name in line if name not in HIDDEN))


def troubles(lines: list[Line]) -> list[str]:
    """What failed, was stopped, or warned."""
    found = []
    for line in lines:
        if "failed" in line or "warned" in line or "skipped" in line:
            about = {
                k: v for k, v in line.items() if k not in (*HIDDEN, "failed", "warned", "at", "seconds", "skipped")
            }
            said = line.get("failed") or line.get("warned") or f"skipped, {line['skipped']}"
            found.append(
                f"   ! {line['step']} {line['section']} {about} {str(said)[:200]} {str(line.get('at', ''))[:90]}"
            )
    return found


def times(lines: list[Line]) -> list[str]:
    """What was timed, and against what."""
    found = []
    for line in lines:
        label = line.get("contestant") or f"{line.get('method')}, {line.get('mode')}"
        if "ms_per_unit" in line and line["section"] in ("time", "method"):
            numbers = {
                "round": line.get("ms_per_round"),
                "unit": line["ms_per_unit"],
                "floor": line.get("floor_ms"),
                "x": line.get("times_floor") or line.get("over_generate"),
                "graph": line.get("graph_ms"),
                "outside": line.get("outside_graph_ms"),
                "first": line.get("first_call_seconds"),
                "GB": line.get("reserved_more_GB"),
            }
            cells = " ".join(f"{name} {'-' if value is None else value:>8}" for name, value in numbers.items())
            uncaught = "NOT COMPILED" if "compiled" in label and line.get("captured") is False else ""
            found.append(f"   {line['model']:15s} {label:45s} {cells} {line.get('phases_ms', '')} {uncaught}")
        elif (
            line["step"] != "smoke" and line["section"] in ("pass", "round", "profile", "attention", "repeat", "call")
        ) or "ms_per_picture" in line:
            found.append(rest(line))
    return found


def main(folder: Path) -> None:
    lines = read(folder)
    told = [line for line in lines if "seconds" not in line or line["section"] in ("time", "method")]
    print(f"== {len(lines)} lines")
    print("\n".join(troubles(lines)))
    print(*(rest(line) for line in told if line["step"] == "smoke" and "failed" not in line), sep="\n")
    print("== equal to the bit or not")
    print(
        *(
            shown(line, EQUAL)
            for line in told
            if line["step"] != "repeat" and {"equal", "tokens_and_generator_equal"} & set(line)
        ),
        sep="\n",
    )
    print("== milliseconds")
    print("\n".join(times(told)))
    tests = folder / "pytest.txt"
    if tests.is_file():
        print("== tests")
        print(
            *(line[:180] for line in tests.read_text().splitlines() if line.startswith(("FAILED", "ERROR"))), sep="\n"
        )
        print(tests.read_text().splitlines()[-1:])


if __name__ == "__main__":
    main(Path(sys.argv[1]))
