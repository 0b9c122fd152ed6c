"""The files of `mmspec new`: a distribution with one component that works, its test, its README, its workflow.

The templates are `string.Template`s; a file of `any` goes into every plugin, one of `checked` into those with a
component, and one of `drafter` and its like into plugins of that kind. The module is called `module.py` there.
"""

import re
from pathlib import Path
from string import Template

from mmspec.files import save_whole
from mmspec.registry import Registry
from mmspec.registry.suggest import unknown

COMPONENTS = ("drafter", "rule", "target", "policy")
KINDS = (*COMPONENTS, "picture")
_TEMPLATES = Path(__file__).parent / "templates"
_NAME = re.compile(r"[a-z][a-z0-9]*([_-][a-z0-9]+)*")


def write(registry: Registry, name: str, kind: str, out: Path) -> Path:
    """Write a plugin; all of it, or nothing; returns its folder. Refuses a name that is malformed or taken.

    `kind` is that of the first component, or `picture`: a pipeline. `out` receives the plugin's folder.
    """
    if kind not in KINDS:
        raise ValueError(unknown("kind of plugin", kind, KINDS))
    _check(registry, name, kind)
    folder = out / f"mmspec-{name.replace('_', '-')}"
    if folder.exists():
        raise ValueError(f"{folder} is there already; choose another name, or another folder with --out")

    def fill(side: Path) -> None:
        for source in ("any", *(["checked"] if kind in COMPONENTS else []), kind):
            _fill(_TEMPLATES / source, side, _words(name))

    save_whole(folder, fill)
    return folder


def _check(registry: Registry, name: str, kind: str) -> None:
    wanted = re.sub(r"[\W_]+", "-", re.sub(r"^mmspec[-_.]", "", name.lower())).strip("-")
    if not _NAME.fullmatch(name) or name.startswith(("mmspec-", "mmspec_")):
        hint = f"; did you mean {wanted!r}?" if _NAME.fullmatch(wanted) else ""
        raise ValueError(f"a plugin's name is lower-case words joined by '-', without 'mmspec-', not {name!r}{hint}")
    ours = [plugin.name for plugin in registry.plugins() if plugin.distribution == "mmspec"] + ["models"]
    if name in ours:  # `mmspec-models` is the distribution of the shipped models
        raise ValueError(f"the name {name!r} is mmspec's own, as are {', '.join(o for o in ours if o != name)}")
    owners = [c.owner for c in registry.components(kind) if c.name == name.replace("_", "-")]
    if owners:
        raise ValueError(f"a {kind} of plugin {owners[0]!r} is called {name!r}; two would be told apart by owner only")


def _words(name: str) -> dict[str, str]:
    component, plugin = name.replace("_", "-"), name.replace("-", "_")
    words = {"component": component, "plugin": plugin, "module": f"mmspec_{plugin}", "project": f"mmspec-{component}"}
    return words | {"pipeline": f"{plugin.title().replace('_', '')}Pipeline"}


def _fill(templates: Path, folder: Path, words: dict[str, str]) -> None:
    for template in sorted(path for path in templates.rglob("*.template")):
        place = template.relative_to(templates).with_suffix("")
        file = folder / str(place).replace("module", words["module"]).replace("github", ".github")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(Template(template.read_text(encoding="utf-8")).substitute(words), encoding="utf-8")
