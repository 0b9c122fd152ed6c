"""Render `docs/reference.md`, the reference for plugin authors, from signatures and docstrings: `make docs`.

Sources are parsed, not imported, except for the table of conformance checks. The reference holds the hooks, the specs,
every protocol of `mmspec/core`, the tree operations of recurrent layers, the data of a round, and the methods that
authors call.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FILE = ROOT / "docs" / "reference.md"
INTRODUCTION = """\
# Reference for plugin authors

Rendered from signatures and docstrings by `make docs`; do not edit. [CONTRIBUTING](../CONTRIBUTING.md) says how
to write a plugin.

Nothing is inherited: a component is any object with these members. Tensors are batched, padded and on the device;
`[batch, node]` is their shape. Randomness, temperature, top-k, guidance, end units and counting belong to the core.
"""
#: Sections with the paths that belong to them, below `mmspec/`; a file belongs to the first prefix that it has.
SECTIONS = {
    "Hooks and specs": ("registry/hookspecs", "registry"),
    "Targets and drafters": (
        "core/protocols",
        "core/capabilities",
        "core/capturable",
        "core/hidden",
        "core/guided",
        "core/known_units",
        "core/drafters/host",
        "core/drafters",
    ),
    "Rules": ("core/rules",),
    "Distributions": ("core/distributions/distribution", "core/distributions"),
    "Policies": ("core/policies",),
    "Data of a round": ("core/types",),
    "Noise": ("core/noise", "core"),
    "Recurrent layers": ("hosts/tree_op",),
}
#: Methods of classes that are no protocols, but that authors call.
CALLED = {"Draft": ("chain", "tree", "empty"), "Round": ("by_position", "fresh"), "DraftNoise": ("chain", "level")}
#: transformers' own protocol, which no plugin implements.
LEFT_OUT = ("Processor",)
_SECTION = re.compile(r"^(Args|Attributes|Returns|Yields|Raises|Example):$", re.MULTILINE)


def rendered() -> str:
    """The whole reference as Markdown."""
    parts = [INTRODUCTION]
    for title, prefixes in SECTIONS.items():
        parts += [f"## {title}\n", *(_module(file) for file in files() if _title(file) == (title, prefixes))]
    return "\n".join([*filter(None, parts), _checks()])


def files() -> list[Path]:
    """Files that may hold something for authors, in the order of the sections."""
    package = ROOT / "mmspec"
    found = [*package.glob("registry/*.py"), *package.glob("core/**/*.py"), package / "hosts" / "tree_op.py"]
    order = [prefix for prefixes in SECTIONS.values() for prefix in prefixes]
    return sorted(found, key=lambda file: (min(i for i, p in enumerate(order) if _below(file, p)), file))


def classes(file: Path) -> Iterator[tuple[ast.ClassDef, list[ast.FunctionDef]]]:
    """Classes of a file that authors need, with the methods that the reference states."""
    for found in ast.parse(file.read_text()).body:
        if not isinstance(found, ast.ClassDef) or found.name.startswith("_") or found.name in LEFT_OUT:
            continue
        methods = [m for m in found.body if isinstance(m, ast.FunctionDef) and not m.name.startswith("_")]
        if _below(file, "registry"):
            if _is_spec(found.name):
                yield found, []
        elif any(ast.unparse(base).endswith("Protocol") for base in found.bases):
            yield found, methods
        elif found.name in CALLED:
            yield found, [m for m in methods if m.name in CALLED[found.name]]
        elif _below(file, "core/types"):
            yield found, []


def hooks(file: Path) -> list[ast.FunctionDef]:
    """Specifications of hooks in a file."""
    functions = [f for f in ast.parse(file.read_text()).body if isinstance(f, ast.FunctionDef)]
    return [f for f in functions if any(ast.unparse(d).startswith("hookspec") for d in f.decorator_list)]


def signature(function: ast.FunctionDef, owner: str = "") -> str:
    """A signature as authors read it: without `self` and without quotes around names."""
    function = ast.parse(ast.unparse(function)).body[0]  # type: ignore[assignment]
    arguments = function.args
    for names in (arguments.posonlyargs, arguments.args):
        names[:] = [name for name in names if name.arg not in ("self", "cls")]
    words = re.sub(r"(: [^,=]+)=", r"\1 = ", ast.unparse(arguments))
    returns = "" if function.returns is None else ast.unparse(function.returns)
    name = f"{owner}.{function.name}" if owner else function.name
    is_property = any(ast.unparse(d) == "property" for d in function.decorator_list)
    return (f"{name}: {returns}" if is_property else f"{name}({words}) -> {returns}").replace("'", "")


def _module(file: Path) -> str:
    parts = [f"#### `{signature(hook)}`\n\n{_text(hook)}" for hook in hooks(file)]
    for found, methods in classes(file):
        path = ".".join(file.relative_to(ROOT).with_suffix("").parts)
        types = {ast.unparse(a.target): ast.unparse(a.annotation) for a in found.body if isinstance(a, ast.AnnAssign)}
        bases = [ast.unparse(base) for base in found.bases if not ast.unparse(base).endswith("Protocol")]
        beside = f", with the members of `{'`, `'.join(bases)}`" if bases else ""
        parts.append(f"### `{found.name}`\n\n`{path}.{found.name}`{beside}\n\n{_text(found, types)}")
        parts += [f"#### `{signature(method, found.name)}`\n\n{_text(method)}" for method in methods]
    return "\n".join(parts)


def _text(node: ast.ClassDef | ast.FunctionDef, types: dict[str, str] | None = None) -> str:
    """A docstring in Google's style as Markdown: paragraphs, and a list for every section."""
    head, *sections = _SECTION.split(ast.get_docstring(node) or "")
    parts = [head.strip()]
    for name, section in zip(sections[::2], sections[1::2], strict=True):
        body, _, after = re.sub(r"\n\n(?=\S)", "\0", section, count=1).partition("\0")
        if name == "Example":
            parts.append(f"```python\n{_dedented(body)}\n```")
        elif name in ("Returns", "Yields"):
            parts.append(f"{name}: {' '.join(body.split())}")
        else:
            parts.append(("Raises:\n\n" if name == "Raises" else "") + _items(body, types or {}))
        parts.append(after.strip())
    return "\n\n".join(filter(None, parts)) + "\n"


def _items(body: str, types: dict[str, str]) -> str:
    """The entries of `Args`, `Attributes` or `Raises`; continuation lines are indented further."""
    lines: list[str] = []
    for line in _dedented(body).splitlines():
        if line.startswith(" ") or not lines:
            lines[-1:] = [f"{lines[-1]} {line.strip()}"] if lines else [line]
        elif line:
            lines.append(line)
    entries = []
    for line in lines:
        name, _, text = line.partition(": ")
        kind = f" (`{types[name]}`)" if name in types else ""
        entries.append(f"- `{name}`{kind}: {text}")
    return "\n".join(entries)


def _dedented(body: str) -> str:
    lines = [line for line in body.strip("\n").splitlines() if line.strip()]
    indent = len(lines[0]) - len(lines[0].lstrip())
    return "\n".join(line[indent:] for line in lines)


def _checks() -> str:
    """The checks of the conformance kit."""
    from mmspec.testing.conformance.check import promises

    lines = [f"| `{p.name}` | {', '.join(p.kinds)} | {p.text} |" for p in promises()]
    table = "\n".join(["| check | of | promise |", "|---|---|---|", *lines])
    return (
        f"## Checks of the conformance kit\n\n`mmspec check NAME` runs those that belong to a component.\n\n{table}\n"
    )


def _is_spec(name: str) -> bool:
    return name in ("Component", "DefaultMethod") or name.endswith("Spec")


def _below(file: Path, prefix: str) -> bool:
    return str(file.relative_to(ROOT / "mmspec").with_suffix("")).startswith(prefix)


def _title(file: Path) -> tuple[str, tuple[str, ...]]:
    """The section of a file: the one with the longest prefix."""
    pairs = [(len(p), (title, prefixes)) for title, prefixes in SECTIONS.items() for p in prefixes if _below(file, p)]
    return max(pairs)[1]


if __name__ == "__main__":
    FILE.write_text(rendered())
