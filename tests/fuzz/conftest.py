"""Bad input by the hundred, every case from a seed: refused in plain words, or as good as without mmspec.

A case fails if another error than `ValueError` or `TypeError` comes out, if its message recommends what is dangerous or
holds control characters, if something is accepted that has to be refused, and if what is accepted is not what
unmodified transformers makes of it. `make fuzz` prints how many were refused and how many accepted, area by area.
"""

import unicodedata
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

RECOMMENDS = ("weights_only=False", "weights_only` to `False", "trust_remote_code=True", "allow_pickle=True")
LONGEST = 1500
TIMEOUT = 120


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All tests of this folder are of the tier `fuzz`, and none may hang."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.fuzz)
            item.add_marker(pytest.mark.timeout(TIMEOUT))


def pytest_terminal_summary(terminalreporter: Any) -> None:
    counts = Counter(
        (Path(report.nodeid.partition("::")[0]).stem, value)
        for report in terminalreporter.stats.get("passed", [])
        for name, value in report.user_properties
        if name == "outcome"
    )
    for area in sorted({area for area, _ in counts}):
        found = ", ".join(f"{counts[area, kind]} {kind}" for kind in ("refused", "accepted") if counts[area, kind])
        terminalreporter.write_line(f"{area}: {found}")


def refuse_dangers(message: str) -> None:
    """What a message may not hold."""
    assert message.strip(), "an error without a word"
    assert len(message) < LONGEST, f"an error of {len(message)} characters"
    assert "Traceback (most recent call last)" not in message, message
    for advice in RECOMMENDS:
        assert advice not in message, f"the message recommends {advice}"
    strange = [c for c in message if unicodedata.category(c) in ("Cc", "Cf") and c not in "\n\t"]
    assert not strange, f"control characters in a message: {strange!r}"


@pytest.fixture
def attempt(record_property: Callable[[str, object], None]) -> Callable[..., Any]:
    """`attempt(call, right)`: None where `call` was refused; what it made, where `right(made)` says that this is right.

    Without `right` the call has to be refused.
    """

    def run(call: Callable[[], Any], right: Callable[[Any], bool] | None = None) -> Any:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                made = call()
        except (ValueError, TypeError) as error:
            refuse_dangers(str(error))
            record_property("outcome", "refused")
            return None
        assert right is not None, "accepted in silence"
        assert right(made), f"accepted, and wrong: {made!r:.200}"
        record_property("outcome", "accepted")
        return made

    return run
