"""What mkdocs is given beside the files of `docs/`: pages made of manifests, cards and documents; links between them.

A page that would load something from another host stops the build.
"""

import re
from pathlib import Path
from typing import Any

from links import RENAMED, rewritten
from methods import pages as method_pages
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

from mmspec.testing.conformance.check import promises

ROOT = Path(__file__).resolve().parents[2]
_FRONT = re.compile(r"\A---\n.*?\n---\n", re.DOTALL)
_FOREIGN = re.compile(
    r"<(?:script|img|iframe|source|video)[^>]+src=.?https?:[^ >]+|<link[^>]+stylesheet[^>]+https?:[^ >]+"
)
_MARKERS = re.compile(r"<!-- /?(?:bench|words)[^>]*-->")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages."""
    for path, text in method_pages():
        files.append(File.generated(config, path, content=text))
    for source, page in RENAMED.items():
        if files.get_file_from_path(page) is None:
            files.append(File.generated(config, page, content=_page(source, page)))
    for card in sorted((ROOT / "model_cards").glob("*.md")):
        page, source = f"cards/{card.name}", f"model_cards/{card.name}"
        files.append(File.generated(config, page, content=_page(source, page)))
    for picture in sorted((ROOT / "model_cards").glob("*.[pg][ni][gf]")):
        files.append(File.generated(config, f"cards/{picture.name}", abs_src_path=str(picture)))
    config.nav = [_unfolded(entry, files) for entry in config.nav or []]
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Let links of a page of `docs/` that leave the folder lead to the site's own pages."""
    path = page.file.src_uri
    if page.file.generated_by:
        return markdown
    return rewritten(markdown.replace("<!-- checks -->", _checks()), f"docs/{path}", path)


def on_post_page(output: str, page: Any, **_: Any) -> str:
    """Refuse what a browser would load from elsewhere."""
    foreign = _FOREIGN.search(output)
    if foreign:
        raise PluginError(f"{page.file.src_uri} would load {foreign[0]} from elsewhere")
    return output


def _page(source: str, page: str) -> str:
    """A document of the repository as a page: without front matter and markers, with the site's links."""
    text = _MARKERS.sub("", _FRONT.sub("", (ROOT / source).read_text()))
    return rewritten(text, source, page)


def _checks() -> str:
    """The table of the conformance kit's checks."""
    rows = [f"| `{promise.name}` | {', '.join(promise.kinds)} | {promise.text} |" for promise in promises()]
    return "\n".join(["| check | of | promise |", "|---|---|---|", *rows])


def _unfolded(entry: Any, files: Files) -> Any:
    """An entry of the navigation, in which a folder (`methods/`) stands for all of its pages."""
    if isinstance(entry, dict):
        return {title: _unfolded(inner, files) for title, inner in entry.items()}
    if isinstance(entry, list):
        return [_unfolded(inner, files) for inner in entry]
    if not entry.endswith("/"):
        return entry
    pages = sorted(file.src_uri for file in files.documentation_pages() if file.src_uri.startswith(entry))
    return sorted(pages, key=lambda page: not page.endswith(("/index.md", "/README.md")))
