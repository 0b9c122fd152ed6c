"""Links between files of the repository, as links between pages of the site."""

import posixpath
import re

RENAMED = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changes.md",
    "assets/README.md": "models/shipped.md",
}
"""Pages that are made of files outside of `docs/`."""
_LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\((?!https?:|#|mailto:)([^)\s]+)\)")


def page_of(path: str) -> str | None:
    """The site's page or picture for a file of the repository; None if the site has none.

    Args:
        path: Path from the root of the repository.
    """
    if path in RENAMED:
        return RENAMED[path]
    folder, _, rest = path.partition("/")
    return {"docs": rest, "model_cards": f"cards/{rest}"}.get(folder)


def rewritten(text: str, source: str, page: str) -> str:
    """Markdown whose links lead to the site's pages; a link to a file that the site lacks becomes its words.

    Args:
        text: The Markdown of a file.
        source: The file, as a path from the root of the repository.
        page: Its page on the site.
    """

    def link(match: re.Match[str]) -> str:
        mark, words, target = match.groups()
        path, hash, heading = target.partition("#")
        place = page_of(posixpath.normpath(posixpath.join(posixpath.dirname(source), path)))
        if place is None:
            return words
        return f"{mark}[{words}]({posixpath.relpath(place, posixpath.dirname(page) or '.')}{hash}{heading})"

    return _LINK.sub(link, text)
