"""Holds the size of the code: `python tools/ratchet.py`, a part of `make lint`.

A figure may fall, and its limit is then lowered to it. A change that raises a limit says why in the same commit.
Of arguments by position two kinds of function are exempt: Triton's, whose arguments are pointers, sizes and strides
that are listed once where the kernel is launched; and tree operations (`OPERATIONS`), which mixers of transformers call
with five arguments by position.
"""

import ast
import sys
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LIMITS = {
    "lines of Python": 74_378,
    "lines about compiled rounds": 1_462,
    "files of up to 90 lines with one importer, in their own folder": 20,
    "functions with more than 7 positional arguments": 0,
}
COMPILED = ("core/compile/*.py", "hosts/buffer_cache.py")
OPERATIONS = ("mmspec_ssm.ops.selective.forward", "mmspec_ssm.ops.ssd.forward")
SMALL, MOST = 90, 7


def sources() -> dict[str, Path]:
    """The modules of the package and of the plugins, by their names."""
    found = {}
    for base in (ROOT, ROOT / "plugins"):
        for path in sorted(base.glob("mmspec*/**/*.py")):
            parts = path.relative_to(base).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def lines(path: Path) -> int:
    return path.read_text().count("\n")


def importers(modules: dict[str, Path]) -> dict[str, set[str]]:
    """Who imports a module, by its name; what is imported by a string is not seen."""
    found: dict[str, set[str]] = defaultdict(set)
    for name, path in modules.items():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                named = {each.name for each in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                named = {node.module, *(f"{node.module}.{each.name}" for each in node.names)}
            else:
                continue
            for other in named & modules.keys() - {name}:
                found[other].add(name)
    return found


def lone(modules: dict[str, Path]) -> list[str]:
    """Small files that one file beside them imports: rooms that may be a part of that one."""
    used = importers(modules)
    return [
        name
        for name, path in modules.items()
        if path.name != "__init__.py"
        and lines(path) <= SMALL
        and len(used[name]) == 1
        and modules[next(iter(used[name]))].parent == path.parent
    ]


def long_signatures(modules: dict[str, Path]) -> list[str]:
    """Functions that take many arguments by position and are not exempt."""
    found = []
    for name, path in modules.items():
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.FunctionDef) or len(node.args.posonlyargs) + len(node.args.args) <= MOST:
                continue
            function = f"{name}.{node.name}"
            if function not in OPERATIONS and "triton.jit" not in map(ast.unparse, node.decorator_list):
                found.append(function)
    return found


def figures() -> dict[str, int]:
    """Today's figures, in the order of `LIMITS`."""
    modules = sources()
    compiled = [path for pattern in COMPILED for path in (ROOT / "mmspec").glob(pattern)]
    compiled += (ROOT / "plugins").glob("mmspec_text/drafters/heads/captured/*.py")
    counts = (
        sum(map(lines, modules.values())),
        sum(map(lines, compiled)),
        len(lone(modules)),
        len(long_signatures(modules)),
    )
    return dict(zip(LIMITS, counts, strict=True))


if __name__ == "__main__":
    if sys.argv[1:] == ["--list"]:
        print("\n".join([*lone(sources()), "", *long_signatures(sources())]))
    now = figures()
    for name, count in now.items():
        print(f"{count:>7,} of {LIMITS[name]:,} {name}")
    grown = [name for name, count in now.items() if count > LIMITS[name]]
    if grown:
        sys.exit(f"grown: {', '.join(grown)}. Make it smaller, or raise the limit in {__file__} and say why.")
