"""Wheels of this repository, and of others, in an environment without the source tree."""

import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

ROOT = Path(__file__).parents[2]
CODE, MODELS = ROOT, ROOT / "assets"


def wheel_of(project: Path, folder: Path) -> Path:
    """Build the wheel of a project into a folder, and return it."""
    before = set(folder.glob("*.whl"))
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(build, cwd=project, check=True, capture_output=True)
    (wheel,) = set(folder.glob("*.whl")) - before
    return wheel


class Environment:
    """A virtual environment with some wheels; what they depend on is read from the one that runs the tests.

    Its `.pth` names our site-packages as a plain folder, whose own `.pth` (the editable mmspec) is then not followed.

    Attributes:
        folder: Where commands run.
        wheels: Folder of the wheels that were built.
        site: Its site-packages.
    """

    def __init__(self, folder: Path, *projects: Path) -> None:
        venv.create(folder / "env", with_pip=False)
        self.folder, self.wheels = folder, folder / "wheels"
        self.site = next((folder / "env" / "lib").iterdir()) / "site-packages"
        (self.site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
        for project in projects:
            self.install(project)

    def install(self, project: Path) -> Path:
        """Build the wheel of a project and install it; returns the wheel."""
        wheel = wheel_of(project, self.wheels)
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--no-compile", "--target"]
        subprocess.run([*pip, str(self.site), str(wheel)], check=True, cwd=self.folder)
        return wheel

    def python(self, *arguments: str, folder: str = "") -> subprocess.CompletedProcess[str]:
        """Run its Python in a folder of `folder`, without a network."""
        environment = {"PATH": "/usr/bin:/bin", "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "COLUMNS": "200"}
        command = [str(self.folder / "env" / "bin" / "python"), *arguments]
        return subprocess.run(command, env=environment, cwd=self.folder / folder, capture_output=True, text=True)
