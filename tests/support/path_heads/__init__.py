"""Heads that step along paths: their layouts, and forwards written out."""

from tests.support.path_heads.layout import PathLayout
from tests.support.path_heads.medusa import MEDUSA

LAYOUTS: dict[str, PathLayout] = {**MEDUSA}
KINDS = ("medusa",)
"""One layout of every kind, for what is long."""
