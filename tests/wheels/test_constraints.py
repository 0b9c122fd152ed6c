"""The pins of the constraints files: each package once, since pip refuses two versions of one."""

from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BESIDE = sorted((ROOT / "tests").glob("*/constraints.txt"))


@pytest.mark.parametrize("beside", BESIDE, ids=lambda path: path.parent.name)
def test_no_package_is_pinned_twice(beside: Path) -> None:
    lines = (ROOT / "constraints.txt").read_text().splitlines() + beside.read_text().splitlines()
    pins = Counter(line.partition("==")[0].lower() for line in lines)
    assert len(pins) > 100 and not [name for name, count in pins.items() if count > 1]
