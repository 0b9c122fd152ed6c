"""The README is short, its links lead somewhere, and its last example runs; the others need a model that people run."""

import inspect
import re
from pathlib import Path

import pytest

from mmspec_text.view.command import view_text
from mmspec_video.commands import play
from tests.support.pages import blocks

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
EXAMPLES = blocks(ROOT / "README.md")


def test_the_readme_is_short_and_opens_with_what_this_is_and_is_not() -> None:
    title, opening, *_ = README.split("\n\n")
    assert "speculative decoding" in title and len(README.splitlines()) <= 100
    assert "only faster" in opening and "not the benchmark of the same name, arXiv 2603.14989" in opening


def test_links_of_the_documents_lead_to_files_and_headings() -> None:
    for file in (
        ROOT / "README.md",
        ROOT / "CONTRIBUTING.md",
        ROOT / "docs/architecture.md",
        ROOT / "docs/authors/README.md",
        *(ROOT / "docs").glob("*/*.md"),
    ):
        for link in re.findall(r"\]\((?!https?:)([^)]+)\)", file.read_text()):
            path, _, heading = link.partition("#")
            place = (file.parent / path).resolve() if path else file
            assert place.exists(), f"{file.name}: {link}"
            titles = re.findall(r"^#+ (.*)$", place.read_text(), re.MULTILINE) if heading else []
            slugs = {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}
            assert not heading or heading in slugs, f"{file.name}: {link}"


def test_the_readme_names_the_versions_that_are_tested() -> None:
    pins = dict(re.findall(r"^(torch|transformers|diffusers)==(\S+)", (ROOT / "constraints.txt").read_text(), re.M))
    assert (
        f"Tested with {', '.join(f'{name} {pins[name]}' for name in ('torch', 'transformers', 'diffusers'))}" in README
    )


def test_make_demo_names_the_addresses_that_the_commands_open() -> None:
    """`mmspec play` and `mmspec view text`, at the ports that they take where none is given."""
    addresses = re.findall(r"http://127.0.0.1:(\d+)/(\w+)/", (ROOT / "Makefile").read_text())
    ports = [inspect.signature(command).parameters["port"].default for command in (play, view_text)]
    assert addresses == [(str(ports[0]), "play"), (str(ports[1]), "text")]


def test_the_third_example_draws_a_picture_and_prints_what_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    exec(EXAMPLES[2], {})
    stated = re.search(r"report\)  # (\d+ units in \d+ passes)", EXAMPLES[2])[1]
    assert stated in capsys.readouterr().out and (tmp_path / "princess.png").is_file()


def test_the_files_that_the_architecture_names_exist() -> None:
    page = (ROOT / "docs/architecture.md").read_text()
    named = {path for path in re.findall(r"`([\w/]+(?:\.py|/))`", page)}
    assert len(named) > 20
    for path in named:
        assert any((ROOT / base / path).exists() for base in ("", "mmspec")), path
