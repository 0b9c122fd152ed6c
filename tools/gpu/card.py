"""What pages say of GPUs, from the lines of leases: `python -m tools.gpu.card` writes it into them."""

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PAGES = (ROOT / "model_cards/gpu.md", ROOT / "README.md")
MARKED = re.compile(r"(<!-- lease: (\S+) (\S+) -->).*?(<!-- /lease -->)", re.S)

Line = dict[str, Any]


def lines_of(lease: str) -> list[Line]:
    """The lines of a lease, by the name of its file."""
    text = (ROOT / "model_cards/gpu" / f"{lease}.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


def table(head: Iterable[str], rows: Iterable[Iterable[Any]]) -> str:
    head = list(head)
    written = ["| " + " | ".join("–" if cell is None else str(cell) for cell in row) + " |" for row in rows]
    return "\n\n" + "\n".join(["| " + " | ".join(head) + " |", "|---" * len(head) + "|", *written]) + "\n\n"


def rounds(lines: list[Line]) -> str:
    """What a round costs on a Llama of 1 B weights, against `generate` in the same run."""
    timed = [line for line in lines if line["section"] == "time" and line.get("step") == "figures"]
    timed = [line for line in timed if line.get("model") == "llama-1b" and "ms_per_unit" in line]
    peers = [line["ms_per_unit"] for line in timed if line["contestant"].startswith("generate, compiled")]
    rows = []
    for line in timed:
        each = line["ms_per_unit"]
        first, second = line.get("first_call_seconds"), line.get("second_call_seconds")
        more = None if first is None or second is None else f"{first - second:.1f}"
        over = None if not peers or line["contestant"].startswith("generate") else f"{min(peers) / each:.2f}"
        numbers = (line.get("ms_per_round"), line.get("graph_ms"), each)
        rows.append((line["contestant"], *(None if n is None else f"{n:.2f}" for n in numbers), over, more))
    head = ("contestant", "ms a round", "of it the graph", "ms a unit", "× generate, compiled", "first call: s more")
    return table(head, rows)


def methods(lines: list[Line]) -> str:
    """What real methods cost, against transformers' compiled `generate` of the same model in the same run."""
    timed = [line for line in lines if line["section"] == "method" and "ms_per_unit" in line]
    rows = []
    for line in timed:
        round_ms, over = line.get("ms_per_round"), line.get("over_generate")
        length = None if round_ms is None else f"{line['acceptance_length']:.2f}"
        shown = (None if round_ms is None else f"{round_ms:.2f}", f"{line['ms_per_unit']:.2f}", length)
        rows.append((line["model"], f"{line['method']}, {line['mode']}", *shown, over and f"{over:.2f}"))
    return table(("model", "method", "ms a round", "ms a unit", "acceptance length", "× generate, compiled"), rows)


def equal(lines: list[Line]) -> str:
    """What was equal: stock calls in float32; texts of one shape in bfloat16."""
    rows: list[tuple[Any, ...]] = []
    for line in lines:
        if "tokens_and_generator_equal" in line:
            found = line["tokens_and_generator_equal"]
            same, all_of = (sum(pair[place] for pair in found.values()) for place in (0, 1))
            rows.append(
                (line["model"], f"float32, {line['law']}: tokens and generator of stock", f"{same} of {all_of}")
            )
        elif line["section"] in ("one shape", "methods") and "texts" in line and line.get("what") != "eager plain":
            what = line.get("what") or line["method"]
            where = line.get("model", "mmspec/text-14m")
            rows.append(
                (where, f"bfloat16, one shape, {line.get('mode')}: {what}", f"{line['equal']} of {line['texts']}")
            )
    return table(("model", "what", "equal"), rows)


def pictures(lines: list[Line]) -> str:
    """Pictures of LlamaGen's shapes with random weights."""
    timed = [line for line in lines if line["section"] == "time" and "ms_per_picture" in line]
    rows = []
    for line in timed:
        each = "–".join(f"{ms:.0f}" for ms in (min(line["ms_per_picture"]), max(line["ms_per_picture"])))
        same = "yes" if line["twice_equal"] else "no"
        rows.append(
            (line["model"], line["contestant"], each, line.get("ms_per_round"), line.get("acceptance_length"), same)
        )
    return table(
        ("model", "contestant", "ms a picture", "ms a round", "acceptance length", "two equal calls are equal"), rows
    )


def tests(lines: list[Line]) -> str:
    """How tests marked gpu ended, and those of the kernels."""
    chosen = sum(line["tests"] for line in lines if line["section"] == "chosen")
    results = [line["result"] for line in lines if line["section"] == "test"]
    rows: list[tuple[Any, ...]] = [("marked gpu", chosen, results.count("passed"), results.count("failed"))]
    for line in lines:
        if line["section"] == "kernels":
            rows.append(("kernels", line["passed"] + line["failed"], line["passed"], line["failed"]))
    return table(("tests", "chosen", "passed", "failed"), rows)


def short(lines: list[Line]) -> str:
    """Rows for the README's table, behind their first bar: speed over transformers' compiled `generate`."""
    timed = [line for line in lines if line["section"] == "time" and "ms_per_unit" in line]
    (peer,) = (line["ms_per_unit"] for line in timed if line.get("contestant") == "generate, compiled")
    each = {line["contestant"]: (peer / line["ms_per_unit"], line.get("acceptance_length")) for line in timed}
    measured = (line for line in lines if line.get("model") == "llama-1b" and "over_generate" in line)
    each |= {
        f"{line['method']}, {line['mode']}": (line["over_generate"], line["acceptance_length"]) for line in measured
    }
    names = {
        "plain": "`plain`",
        "chain of 16 nodes": "15 tokens drafted at no cost, accepted at 0.8 each",
        "eagle-3 shape, chain of 4, synthetic 0.75": "a head of EAGLE-3's size, accepted at 0.75",
    }
    rows = []
    for name, text in names.items():
        (default, length), (compiled, _) = each[f"{name}, default"], each[f"{name}, compiled"]
        speed = f"not measured | {default:.2f}, compiled {compiled:.2f} × generate, compiled"
        rows.append(
            f"[H100, 1 B random weights](model_cards/gpu.md) | {text} | {length:.2f} | {speed} | cost of a round"
        )
    return " |\n| ".join(rows)


TABLES = {"rounds": rounds, "methods": methods, "equal": equal, "pictures": pictures, "short": short, "tests": tests}


def rendered(page: str) -> str:
    """A page with its tables made anew."""
    return MARKED.sub(lambda found: found[1] + TABLES[found[3]](lines_of(found[2])) + found[4], page)


if __name__ == "__main__":
    for path in PAGES:
        path.write_text(rendered(path.read_text(encoding="utf-8")), encoding="utf-8")
