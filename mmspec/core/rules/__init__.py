"""Verification rules: draft + scores → verdict. One rule, one file, named after it."""

from mmspec.core.rules.block import Block
from mmspec.core.rules.match import Match
from mmspec.core.rules.recursive_rejection import RecursiveRejection
from mmspec.core.rules.rejection import Rejection
from mmspec.core.rules.rule import Rule, walk, walk_where
from mmspec.core.rules.synthetic import Synthetic, SyntheticOptions

__all__ = [
    "Block",
    "Match",
    "RecursiveRejection",
    "Rejection",
    "Rule",
    "Synthetic",
    "SyntheticOptions",
    "walk",
    "walk_where",
]
