"""Prints the lower bounds of pyproject.toml as pins for pip: `make test-lowest` installs these versions."""

import re
import tomllib
from pathlib import Path

EXTRAS = ("check", "play")
"""The extras that the tests of this tier need, beside pytest."""

PROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]


def pins() -> list[str]:
    """A pin for each dependency of the package, and of these extras.

    Raises:
        ValueError: A dependency has another form than `name>=version`.
    """
    wanted = [*PROJECT["dependencies"], *(each for extra in EXTRAS for each in PROJECT["optional-dependencies"][extra])]
    found = {each: re.fullmatch(r"([\w.-]+)>=([\d.]+)", each) for each in wanted}
    without = [each for each, match in found.items() if match is None]
    if without:
        raise ValueError(f"pyproject.toml has lower bounds alone; not of this form: {', '.join(without)}")
    return [f"{match[1]}=={match[2]}" for match in found.values() if match is not None]


if __name__ == "__main__":
    print("\n".join(pins()))
