"""The code of the site's pages runs as it is written, block after block; and the site's own pages are whole."""

import importlib.util
import re
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.pages import blocks, fenced, refuse_unknown

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted([*DOCS.glob("**/*.md"), *ROOT.glob("*/README.md"), ROOT / "CONTRIBUTING.md", ROOT / "README.md"])
ELSEWHERE = (ROOT / "README.md", DOCS / "authors" / "README.md")
"""Their code runs in `test_readme.py` and `tests/real`, whose model is downloaded, and in `tests/authoring`."""
RUN = [page for page in PAGES if blocks(page) and page not in ELSEWHERE]


@pytest.mark.parametrize("page", RUN, ids=lambda page: page.stem)
def test_the_code_of_a_page_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for code in blocks(page):
        exec(compile(code, page.name, "exec"), names)


@pytest.mark.parametrize("page", [page for page in PAGES if fenced(page)], ids=lambda p: f"{p.parent.name}/{p.stem}")
def test_every_block_has_a_language_and_its_commands_exist(page: Path) -> None:
    for block in fenced(page):
        assert block.language in ("python", "console", "text", "toml"), block.code
        if block.language == "python":
            compile(block.code, page.name, "exec")
        for line in block.code.splitlines() if block.language == "console" else ():
            program, *words = shlex.split(line, comments=True) or [""]
            if program == "mmspec":
                refuse_unknown(words)


def test_the_page_of_models_shows_how_their_authors_draw() -> None:
    from mmspec_image.sampling import AUTHORS

    page = (DOCS / "models" / "README.md").read_text()
    for name, usual in AUTHORS.items():
        assert f"| {name} | {' | '.join(map(str, usual))} |\n" in page


def test_the_page_of_models_lists_those_that_are_not_read() -> None:
    from mmspec_image.official.published import UNTAKEN

    page = (DOCS / "models" / "README.md").read_text()
    assert "".join(f"| {model.name} | {model.why} | {model.instead} |\n" for model in UNTAKEN) in page


@pytest.fixture(scope="module")
def made() -> dict[str, str]:
    """The generated pages of methods."""
    sys.path.insert(0, str(DOCS / "site"))
    try:
        spec = importlib.util.spec_from_file_location("methods_of_the_site", DOCS / "site" / "methods.py")
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(DOCS / "site"))
    return dict(module.pages())


def test_every_method_has_a_page_that_says_what_it_promises(made: dict[str, str]) -> None:
    from mmspec.registry import installed

    for method in installed().components("method"):
        page = made[f"methods/{method.name}.md"]
        assert method.summary in page and f"**Exactness**: {method.exactness}" in page
        assert f"[`{method.name}`]({method.name}.md)" in made["methods/index.md"]
        assert ("another distribution" in page) == (method.exactness == "lossy")


def test_a_page_has_options_and_measured_rows(made: dict[str, str]) -> None:
    page = made["methods/prompt-lookup.md"]
    assert "| `max_ngram` |" in page and "| [text-14m](../cards/text-14m.md) | code, greedy |" in page
    assert "**When not to use it**" in page or "never slower" in page


def test_a_page_has_the_speed_of_the_readme_beside_that_over_plain(made: dict[str, str]) -> None:
    """One setting has one number of each kind, whichever page says it, and the model beside it."""
    shown = made["methods/prompt-lookup.md"]
    for line in (ROOT / "README.md").read_text().splitlines():
        if "`compiled prompt-lookup`" in line and "ssm-5m.bench.json" in line:
            times, way = re.search(r"\| (\d\.\d\d) \([^)]*\) × ([^|]*) \|", line).groups()  # type: ignore[union-attr]
            break
    row = next(line for line in shown.splitlines() if "ssm-5m" in line and "greedy | compiled prompt-lookup" in line)
    assert row.endswith(f"| {times} × {way} |")
    advice = next(line for line in shown.splitlines() if line.startswith("**When not to use it**"))
    assert all(part.count("](../cards/") == 1 for part in advice.split("; "))
