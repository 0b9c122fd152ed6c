"""Heads that step along paths: their layouts, and forwards written out."""

from tests.support.path_heads.clover_2 import CLOVER
from tests.support.path_heads.hydra import HYDRA
from tests.support.path_heads.layout import PathLayout
from tests.support.path_heads.medusa import MEDUSA
from tests.support.path_heads.speculator import SPECULATORS

LAYOUTS: dict[str, PathLayout] = {**MEDUSA, **HYDRA, **CLOVER, **SPECULATORS}
KINDS = ("medusa", "hydra", "hydra++", "clover", "clover-2", "mlp-speculator", "arctic-lstm")
"""One layout of every kind, for what is long."""
