"""The command line under hostile arguments, environments and files: exit code 1 or 2 and whole sentences."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mmspec import cli
from mmspec.cli.boundary import run
from mmspec.shipped import folder as shipped_folder
from tools.cards.__main__ import build

HUGE = str(10**30)
TEXT = ["generate", "text", "--model", "mmspec/text-1m", "x"]
IMAGE = ["generate", "image", "red heart"]
WRONG: list[list[str]] = [
    ["nothing"],
    [""],
    ["--plugin"],
    ["--plugin", "nowhere.py", "methods"],
    ["--plugin", "/", "methods"],
    ["--plugin", "/dev/null", "methods"],
    ["methods", "x"],
    ["methods", "--for", ""],
    ["methods", "--for", "no-such-folder/really"],
    ["methods", "--for", "mmspec/none"],
    ["methods", "--for", "/dev/null"],
    ["plugins", "x"],
    ["new", ""],
    ["new", "../evil"],
    ["new", "Bad Name"],
    ["new", "acme", "--kind", "x"],
    ["new", "acme", "--out", "/proc/nowhere"],
    ["new", "acme", "--out", "/dev/null"],
    ["verify"],
    ["verify", "nowhere.py"],
    ["verify", "/"],
    ["verify", "/dev/null", "--method", "x"],
    ["verify", "/dev/null", "--repeats", "0"],
    ["verify", "/dev/null", "--opt", "x"],
    ["check", "nowhere"],
    ["check", "--parity", "nowhere"],
    ["convert", "nothing", "x.pt", "-o", "out"],
    ["convert", "llamagen"],
    ["convert", "llamagen", "nowhere.pt", "-o", "out", "--opt", "grid=16"],
    ["convert", "llamagen", "nowhere.pt", "-o", "out", "--opt", "grid=no"],
    ["convert", "oasis", "/", "-o", "out", "--opt", "action_vectors=[[0]]"],
    ["convert", "oasis", "/dev/null", "-o", "/dev/null/out", "--opt", "action_vectors=["],
    ["check", "--parity", "/dev/null"],
    ["bench", "x"],
    ["train", "drafter", "--target", "mmspec/text-1m", "--out", "x", "--data", "nowhere.jsonl"],
    ["train", "drafter", "--target", "mmspec/text-1m", "--out", "x", "--self-generated", "8", "--steps", "0"],
    *([*TEXT, *more] for more in (
        ["--method", "x"], ["--method", ""], ["--method", "gs-sjd"], ["--drafter", "x"], ["--rule", "x"],
        ["-k", "-1"], ["-k", "x"], ["-k", "1.5"], ["--policy", "x"],
        ["--max-new-tokens", "0"], ["--max-new-tokens", "-1"], ["--max-new-tokens", "x"],
        ["--temperature", "-1"], ["--temperature", "nan"], ["--temperature", "inf"], ["--temperature", "x"],
        ["--top-k", "-1"], ["--top-k", "1.5"], ["--top-p", "2"], ["--top-p", "nan"],
        ["--seed", "x"], ["--seed", HUGE], ["--seed", "1.5"],
        ["--opt", "x"], ["--opt", "=1"], ["--opt", "x=1"], ["--opt", "ngram=[1"], ["--opt", "ngram=-1"],
        ["--opt", "ngram=" + HUGE], ["--device", "tpu"], ["--device", "cuda"], ["--device", ""], ["--device", "meta"],
        ["--model", "no/such"], ["--model", ""], ["--model", "/dev/null"], ["--model", "mmspec/emoji"],
    )),
    *([*IMAGE, *more] for more in (
        ["--out", "/proc/nowhere/x.png"], ["--out", "/"], ["--out", "x.nothing"], ["--out", "/dev/null/x.png"],
        ["--trace", "/proc/nowhere/x.png"], ["--guidance", "nan"], ["--guidance", "x"], ["--guidance", "inf"],
        ["--seed", HUGE], ["--num-images", "0"], ["--num-images", "-1"], ["--num-images", HUGE],
        ["--temperature", "nan"], ["--class-label", "3"], ["--class-label", "-1"],
        ["--device", "cuda"], ["--model", "mmspec/text-1m"], ["--opt", "window=0"], ["-k", "-1"],
    )),
    ["generate", "image", "xylophone quantum"],
    ["generate", "continuous", "xylophone quantum"],
    ["generate", "continuous", "red heart", "--out", "/proc/nowhere/x.png"],
    ["generate", "continuous", "red heart", "--device", "cuda"],
    *(["bench", kind, *more] for kind in ("text", "image", "continuous", "ssm", "video") for more in (
        ["--device", "cuda"], ["--device", "tpu"], ["--repeats", "0"], ["--json", "/proc/nowhere/x.json"],
        ["--json", "/"], ["--method", "x"], ["--plot", "x.nothing"], ["--plot", "/proc/nowhere/x.png"],
        ["--seed", "x"],
    )),
]  # fmt: skip


@pytest.fixture
def command(
    monkeypatch: pytest.MonkeyPatch, capfd: Any, tmp_path: Path, record_property: Callable
) -> Callable[[list[str]], tuple[int, str]]:
    """`command(arguments)`: exit code and what was said; any other end than a clean one fails."""

    def run(arguments: list[str]) -> tuple[int, str]:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", ["mmspec", *arguments])
        try:
            cli.main()
            code = 0
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
        said = "".join(capfd.readouterr())
        assert "Traceback" not in said, said
        record_property("outcome", "accepted" if code == 0 else "refused")
        return code, said

    return run


@pytest.mark.parametrize("arguments", WRONG)
def test_wrong_arguments(command: Callable, tmp_path: Path, arguments: list[str]) -> None:
    code, said = command(arguments)
    assert code in (1, 2) and said.strip()
    assert len(said) < 6000
    assert not list(tmp_path.iterdir()), "a command that failed left something behind"


FORGED: dict[str, Any] = {
    "empty": {},
    "list": [],
    "text": "x",
    "number": 7,
}


def forged() -> list[tuple[str, str]]:
    """Results with one value that is not what it was: `(path, text)`."""
    values: tuple[Any, ...] = (
        None,
        -1,
        0,
        "x",
        [],
        {},
        "<script>",
        "\x1b[31m",
        "a\nb",
        "<!-- /bench -->",
        float("nan"),
    )
    whole = json.loads((shipped_folder("model_cards") / "text-14m.bench.json").read_text(encoding="utf-8"))
    cases = [(f"{name}", json.dumps(value)) for name, value in FORGED.items()]
    for key in sorted(whole):
        for value in values:
            cases.append((f"{key}={value!r}", json.dumps({**whole, key: value})))
    return [*cases, ("not json", "{"), ("half", json.dumps(whole)[:500])]


@pytest.mark.parametrize("name,text", forged())
def test_forged_results(capfd: pytest.CaptureFixture[str], tmp_path: Path, name: str, text: str) -> None:
    """A card is written whole from what is sound, or not at all; nothing in it is markup that a file brought."""
    result = tmp_path / "forged.bench.json"
    result.write_text(text, encoding="utf-8")
    card = tmp_path / "card.md"
    code = run(lambda: build()([str(result), "-o", str(card)], standalone_mode=False))
    said = "".join(capfd.readouterr())
    assert "Traceback" not in said, said
    assert code in (0, 2) and (code == 0) == card.exists(), said
    if card.exists():
        written = card.read_text(encoding="utf-8")
        assert "<script>" not in written and "\x1b" not in written and "\nb" not in written.replace("\nbe", "")
        assert written.count("<!-- /bench -->") == written.count("<!-- bench:")
