"""What a check came to."""

from dataclasses import dataclass
from typing import Literal

Status = Literal["pass", "fail", "xfail", "skip"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """A line of `mmspec check`.

    Attributes:
        check: The check's name.
        component: Its qualified name: `text:suffix`.
        status: `pass`, `fail`, `xfail` (it fails, and was expected to) or `skip` (it could not be tried).
        number: What was measured; never empty.
        reason: Why it did not pass; empty where it did.
        kind: The component's kind: several kinds may share a name.
    """

    check: str
    component: str
    status: Status
    number: str
    reason: str = ""
    kind: str = ""
