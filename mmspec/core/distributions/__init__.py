"""A distribution at every node, and how a target's is coupled with a draft's."""

from mmspec.core.distributions.categorical import Categorical
from mmspec.core.distributions.chain import DenoisingChain
from mmspec.core.distributions.distribution import (
    CouplesAtOnce,
    Distribution,
    Explaining,
    finite_nodes,
    take_nodes,
    where_nodes,
)
from mmspec.core.distributions.gaussian import Gaussian
from mmspec.core.distributions.grouped import Grouped
from mmspec.core.distributions.head import Head, PredictsClean
from mmspec.core.distributions.mixed import Mixed, couple, dense, dense_at, drawn_part
from mmspec.core.distributions.mixture import GaussianMixture
from mmspec.core.distributions.point_mass import External, PointMass
from mmspec.core.distributions.reflection import reflect
from mmspec.core.distributions.trajectory import Schedule, Trajectory

__all__ = [
    "Categorical",
    "CouplesAtOnce",
    "DenoisingChain",
    "Distribution",
    "Explaining",
    "External",
    "Gaussian",
    "GaussianMixture",
    "Grouped",
    "Head",
    "Mixed",
    "PointMass",
    "PredictsClean",
    "Schedule",
    "Trajectory",
    "couple",
    "dense",
    "dense_at",
    "drawn_part",
    "finite_nodes",
    "reflect",
    "take_nodes",
    "where_nodes",
]
