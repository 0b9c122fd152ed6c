"""A benchmark's JSON may come from anybody: what cannot be shown is refused, the rest shows in Markdown as it is."""

import copy
import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mmspec.report import views
from mmspec.report.views import vs_best
from tools.cards.cards import render_measured
from tools.cards.numbers import fill
from tools.report import markdown
from tools.report.whole import WholeResult, load_whole

PLACES: dict[str, Callable[[dict[str, Any], str], object]] = {
    "the model": lambda d, text: d.update(model=text),
    "the machine": lambda d, text: d.update(device=text),
    "a version": lambda d, text: d["versions"].update(torch=text),
    "the prompts": lambda d, text: d.update(prompts={text: 1}),
    "how it was run": lambda d, text: d.update(how=text),
    "a unit": lambda d, text: d.update(unit=text),
    "a note": lambda d, text: d.update(floor={"code, greedy": {}}, notes={"distinct_3": text}),
    "a method": lambda d, text: d["rows"][2].update(method=text),
    "a setting": lambda d, text: [r.update(setting=text) for r in d["rows"] if r["setting"] == "prose, T = 0.8"],
    "an exactness": lambda d, text: d["rows"][2].update(exactness=text),
    "a quality": lambda d, text: d["rows"][2]["quality"].update({text: 1.0}),
    "an option": lambda d, text: d["rows"][2]["options"].update({"k": [text]}),
    "a peer's note": lambda d, text: d["peers"]["code, greedy / generate"].update(note=text),
    "a peer's name": lambda d, text: d["peers"].update(
        {f"code, greedy / {text}": d["peers"]["code, greedy / generate"]}
    ),
    "a limit": lambda d, text: d["limits"]["measured"].update({text: 1.0}),
}


@pytest.fixture
def document(result: WholeResult, tmp_path: Path) -> dict[str, Any]:
    result.save(tmp_path / "r.json")
    found: dict[str, Any] = json.loads((tmp_path / "r.json").read_text())
    found["peers"] = {name: peer for name, peer in found["peers"].items() if name.startswith("code")}
    return found


def loaded(document: dict[str, Any], folder: Path) -> WholeResult:
    (folder / "r.json").write_text(json.dumps(document))
    return load_whole(folder / "r.json")


@pytest.mark.parametrize("place", PLACES)
def test_control_characters_are_refused_wherever_they_stand(
    document: dict[str, Any], tmp_path: Path, place: str
) -> None:
    for control in ("\x1b[31m", "a\nb", "a\u2028b", "a\u202eb"):
        spoiled = copy.deepcopy(document)
        PLACES[place](spoiled, control)
        with pytest.raises(ValueError, match=r"r\.json is not the result of .* holds the control character") as refused:
            loaded(spoiled, tmp_path)
        assert str(refused.value).isprintable()


HOSTILE = (
    "<!-- /bench -->",
    "<script>alert(1)</script>",
    "a | b",
    "`code`",
    "[x](javascript:alert(1))",
    "![x](http://e.org/i.png)",
    "# big",
    "~~~",
    r"a\|b",
)


@pytest.mark.parametrize("place", PLACES)
def test_what_markdown_would_misread_is_shown_as_text(document: dict[str, Any], tmp_path: Path, place: str) -> None:
    kept = copy.deepcopy(document)
    for hostile in HOSTILE:
        spoiled = copy.deepcopy(kept)
        PLACES[place](spoiled, hostile)
        result = loaded(spoiled, tmp_path)
        card = render_measured(result, "r")
        body = card.partition("---\n# ")[2]
        assert fill(card, tmp_path, {"r.bench.json": result}) == card, "the block ends where it ends"
        assert "<script" not in card and card.count("<!--") == 2 and "](" not in body
        assert not re.search(r"(?<!\\)`", body) and not re.search(r"^(#(?!# Speed)|~)", body, re.MULTILINE)
        for block in [part for part in markdown.markdown(result).split("\n\n") if part.startswith("|")]:
            assert len({len(re.findall(r"(?<!\\)(?:\\\\)*\|", line)) for line in block.splitlines()}) == 1, block


@pytest.mark.parametrize("seconds", [0, -1.0, float("nan"), float("inf"), None])
@pytest.mark.parametrize("where", ["repeats_s", "plain_repeats_s", "alone_repeats_s", "peer"])
def test_seconds_that_no_clock_shows_are_refused(
    document: dict[str, Any], tmp_path: Path, where: str, seconds: object
) -> None:
    holder = document["peers"]["code, greedy / generate"] if where == "peer" else document["rows"][-1]
    holder["repeats_s" if where == "peer" else where][1] = seconds
    with pytest.raises(ValueError, match=r"r\.json is not the result of `mmspec bench`: (rows|peers)"):
        loaded(document, tmp_path)


@pytest.mark.parametrize(("name", "value"), [("verify_s", float("nan")), ("draft_s", -1), ("target_passes", -3)])
def test_other_amounts_are_no_less_than_nothing(
    document: dict[str, Any], tmp_path: Path, name: str, value: float
) -> None:
    document["rows"][0][name] = value
    with pytest.raises(ValueError, match=name):
        loaded(document, tmp_path)


def test_numbers_that_nobody_can_show_are_refused(document: dict[str, Any], tmp_path: Path) -> None:
    for spoil, where in (
        (lambda d: d["rows"][0].update(units=10**400), "units"),
        (lambda d: d["rows"][0].update(batch=0), "batch"),
        (lambda d: d["rows"][0]["repeats_s"].append(1e308), "repeats_s"),
        (lambda d: d["rows"][0].update(rest_s=1e308), "rest_s"),
        (lambda d: d["rows"][0]["quality"].update(x=float("inf")), "quality"),
        (lambda d: d["limits"]["v_of_n"].update(many=1.0), "v_of_n"),
        (lambda d: d["limits"]["by_nodes"].update(x={"-1": 1.0}), "by_nodes"),
    ):
        spoiled = copy.deepcopy(document)
        spoil(spoiled)
        with pytest.raises(ValueError, match=rf"r\.json is not the result of `mmspec bench`: .*{where}"):
            loaded(spoiled, tmp_path)


def test_repeats_that_cannot_be_paired_are_refused(document: dict[str, Any], tmp_path: Path) -> None:
    for spoil, message in (
        (lambda d: d["rows"][1].update(repeats_s=[]), "has no repeats"),
        (lambda d: d["rows"][1]["plain_repeats_s"].pop(), "3 repeats and 2 in plain_repeats_s; they are pairs"),
        (lambda d: d["peers"]["code, greedy / generate"]["repeats_s"].pop(), "has 2 repeats and its setting's rows 3"),
        (lambda d: d["peers"].update(other=d["peers"]["code, greedy / generate"]), "the peer 'other' is of no setting"),
        (lambda d: d["peers"]["code, greedy / generate"].update(setting="x"), "is of no setting that has rows"),
    ):
        spoiled = copy.deepcopy(document)
        spoil(spoiled)
        with pytest.raises(ValueError, match=message):
            loaded(spoiled, tmp_path)


def test_no_speed_is_taken_from_the_document(document: dict[str, Any], tmp_path: Path) -> None:
    assert "speedup" not in document["rows"][0] and "throughput" not in document["rows"][-1]["quality"]
    for row in document["rows"]:
        row["speedup"] = 99.0
    result = loaded(document, tmp_path)
    text = '<!-- bench: r.json speedup "code, greedy" prompt-lookup plain --><!-- /bench -->'
    assert ">1.60<" in fill(text, tmp_path) and "99.0" not in markdown.markdown(result)
    assert result.row("code, greedy", "prompt-lookup").speedup == pytest.approx(1.6)


def test_the_ratios_against_the_best_way_are_those_of_the_repeats(result: WholeResult, tmp_path: Path) -> None:
    kept = replace(result, vs_best=vs_best(result))
    code = kept.vs_best["code, greedy"]
    assert code.way == "prompt lookup" and code.times == {
        row.method: round(result.against(row, "prompt lookup"), 4) for row in views.real(result, "code, greedy")
    }
    assert code.times["plain"] == pytest.approx(0.7273) and kept.vs_best["prose, T = 0.8"].way == "generate"
    kept.save(tmp_path / "r.json")
    assert load_whole(tmp_path / "r.json").vs_best == kept.vs_best
    document = json.loads((tmp_path / "r.json").read_text())
    document["vs_best"]["code, greedy"]["times"]["plain"] = 1.5
    with pytest.raises(ValueError, match="vs_best is not what its repeats give"):
        loaded(document, tmp_path)
