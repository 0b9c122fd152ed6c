"""The README is short, its links lead somewhere, and its examples run."""

import contextlib
import inspect
import io
import re
from pathlib import Path
from typing import Any

import pytest

from mmspec_text.view.command import view_text
from mmspec_video.commands import play
from tests.support.pages import blocks

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
EXAMPLES = blocks(ROOT / "README.md")


def test_the_readme_is_short_and_opens_with_what_this_is_and_is_not() -> None:
    first, second, *rest = README.splitlines()
    assert "speculative decoding" in first and len(rest) <= 98
    assert "not the benchmark" in second and "2603.14989" in second


def test_links_of_the_documents_lead_to_files_and_headings() -> None:
    for file in (
        ROOT / "README.md",
        ROOT / "CONTRIBUTING.md",
        ROOT / "docs/architecture.md",
        ROOT / "docs/authors/README.md",
    ):
        for link in re.findall(r"\]\((?!https?:)([^)]+)\)", file.read_text()):
            path, _, heading = link.partition("#")
            place = (file.parent / path).resolve() if path else file
            assert place.exists(), f"{file.name}: {link}"
            titles = re.findall(r"^#+ (.*)$", place.read_text(), re.MULTILINE) if heading else []
            slugs = {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}
            assert not heading or heading in slugs, f"{file.name}: {link}"


def test_make_demo_names_the_addresses_that_the_commands_open() -> None:
    """`mmspec play` and `mmspec view text`, at the ports that they take where none is given."""
    addresses = re.findall(r"http://127.0.0.1:(\d+)/(\w+)/", (ROOT / "Makefile").read_text())
    ports = [inspect.signature(command).parameters["port"].default for command in (play, view_text)]
    assert addresses == [(str(ports[0]), "play"), (str(ports[1]), "text")]


@pytest.fixture(scope="module")
def text_example() -> tuple[dict[str, Any], str]:
    """Names and output of the first example: a language model in float32, where equality is promised."""
    names: dict[str, Any] = {}
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(EXAMPLES[0], names)
    return names, printed.getvalue()


def stated(code: str) -> str:
    return re.search(r"report\)  # (\d+ units in \d+ passes)", code)[1]


def test_the_first_example_gains_and_prints_what_it_says(text_example: tuple[dict[str, Any], str]) -> None:
    """Passes are counted, so no machine's speed decides."""
    names, printed = text_example
    assert stated(EXAMPLES[0]) in printed and names["spec"].report.acceptance_length > 2
    plain = names["model"].generate(**names["inputs"], max_new_tokens=60, do_sample=False)
    assert names["out"][0, : plain.shape[1]].tolist() == plain[0].tolist()


def test_the_second_example_draws_the_stock_sample_in_the_passes_that_it_says(
    text_example: tuple[dict[str, Any], str],
) -> None:
    names, code = dict(text_example[0]), EXAMPLES[1]
    exec(code, names)
    passes = int(re.search(r"from (\d+) passes of the model instead of 200", code)[1])
    names["torch"].manual_seed(0)
    with names["mmspec"].enable(names["model"], "token-recycling") as spec:
        again = names["model"].generate(**names["inputs"], max_new_tokens=200, do_sample=True, temperature=0.3)
    assert again.tolist() == names["ours"].tolist() and abs(spec.report.rounds - passes) <= 1 and passes < 100


def test_the_third_example_draws_a_picture_and_prints_what_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    exec(EXAMPLES[2], {})
    assert stated(EXAMPLES[2]) in capsys.readouterr().out and (tmp_path / "princess.png").is_file()


def test_the_files_that_the_architecture_names_exist() -> None:
    page = (ROOT / "docs/architecture.md").read_text()
    named = {path for path in re.findall(r"`([\w/]+(?:\.py|/))`", page)}
    assert len(named) > 20
    for path in named:
        assert any((ROOT / base / path).exists() for base in ("", "mmspec")), path
