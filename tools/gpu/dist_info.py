"""mmspec's metadata beside the carried wheels: its version and its entry points, without a build."""

import re
import sys
import tomllib
from pathlib import Path


def write(root: Path, site: Path) -> Path:
    """Write the metadata of the source tree `root` into the folder of packages `site`."""
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    found = re.search(r'__version__ = "([^"]+)"', (root / "mmspec" / "__init__.py").read_text())
    assert found is not None
    info = site / f"mmspec-{found[1]}.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: mmspec\nVersion: {found[1]}\n")
    groups = {"console_scripts": project["scripts"], **project["entry-points"]}
    listed = (f"[{group}]\n" + "\n".join(f"{k} = {v}" for k, v in entries.items()) for group, entries in groups.items())
    (info / "entry_points.txt").write_text("\n".join(listed) + "\n")
    return info


if __name__ == "__main__":
    print(write(*map(Path, sys.argv[1:3])))
