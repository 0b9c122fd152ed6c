"""Shapes of draft trees. One shape, one file, named after it."""

from mmspec.core.drafters.shapes.beam import Beam
from mmspec.core.drafters.shapes.branching import Branching
from mmspec.core.drafters.shapes.chain import Chain
from mmspec.core.drafters.shapes.heap import Heap
from mmspec.core.drafters.shapes.rerank import Rerank
from mmspec.core.drafters.shapes.shape import Ending, Frontier, Level, Shape
from mmspec.core.drafters.shapes.static import Static

__all__ = [
    "Beam",
    "Branching",
    "Chain",
    "Ending",
    "Frontier",
    "Heap",
    "Level",
    "Rerank",
    "Shape",
    "Static",
]
