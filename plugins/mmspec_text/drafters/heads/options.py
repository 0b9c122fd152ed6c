"""Options of drafters with a trained head."""

from dataclasses import dataclass, field
from typing import Any

from mmspec_text.drafters.tree_form import TreeForm


@dataclass(frozen=True)
class HeadOptions(TreeForm):
    """The head, and the form of its drafts."""

    model: Any = field(default=None, metadata={"help": "the head: a folder or a hub name"})
    probe: bool = field(default=True, metadata={"help": "whether the first call tries the head on its prompt"})
