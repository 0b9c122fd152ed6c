"""Methods of papers beside those of the first table, written into `docs/papers.md`: `python docs/site/papers.py`."""

import re
from pathlib import Path

from mmspec.registry import MethodSpec, installed, pair

PAGE = Path(__file__).resolve().parents[1] / "papers.md"
OPEN, CLOSE = "<!-- papers: others -->", "<!-- /papers -->"
_ROW = re.compile(r"^\| \[(?P<title>[^\]]+)\]\((?P<paper>[^)]+)\) \| (?P<ours>.*?) \| (?P<files>.*?) \|", re.MULTILINE)


def rows(text: str) -> list[dict[str, str]]:
    """Title, paper, what is ours and its files, of every row of the page's first table."""
    return [match.groupdict() for match in _ROW.finditer(text.partition(OPEN)[0])]


def filled(text: str) -> str:
    """The page with its second table as the registry has it: methods whose papers the first one does not have."""
    before, _, rest = text.partition(OPEN)
    known = {row["paper"] for row in rows(text)}
    others = [method for method in installed().components("method") if method.paper and method.paper not in known]
    lines = [
        f"| [`{method.name}`](methods/{method.name}.md) | <{method.paper}> | `{file_of(method)}` |"
        for method in sorted(others, key=lambda method: method.name)
    ]
    table = "\n".join(["| method | paper | file |", "|---|---|---|", *lines])
    return f"{before}{OPEN}\n\n{table}\n\n{CLOSE}{rest.partition(CLOSE)[2]}"


def file_of(method: MethodSpec) -> str:
    """The file of a method's drafter, or of its rule where it has none, from the root of the repository."""
    parts = pair(installed(), method)
    module = (parts.drafter or parts.rule).factory.partition(":")[0].replace(".", "/")
    return f"{module}.py" if module.startswith("mmspec/") else f"plugins/{module}.py"


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text()))
