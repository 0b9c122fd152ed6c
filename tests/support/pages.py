"""The code of documents."""

import re
from pathlib import Path


def blocks(page: Path) -> list[str]:
    """The blocks of Python of a page, in order."""
    return re.findall(r"^```python\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)
