"""Laws couple: a distribution at every node, and how it is tied to another one."""

from mmspec.core.laws.categorical import Categorical
from mmspec.core.laws.chain import DenoisingChain, Head
from mmspec.core.laws.gaussian import Gaussian
from mmspec.core.laws.law import Law, finite_nodes, take_nodes, where_nodes
from mmspec.core.laws.mixed import Mixed, couple, dense, drawn_part
from mmspec.core.laws.mixture import GaussianMixture
from mmspec.core.laws.point_mass import PointMass
from mmspec.core.laws.reflection import reflect
from mmspec.core.laws.told import Told
from mmspec.core.laws.trajectory import Schedule, Trajectory

__all__ = [
    "Categorical",
    "DenoisingChain",
    "Gaussian",
    "GaussianMixture",
    "Head",
    "Law",
    "Mixed",
    "PointMass",
    "Schedule",
    "Told",
    "Trajectory",
    "couple",
    "dense",
    "drawn_part",
    "finite_nodes",
    "reflect",
    "take_nodes",
    "where_nodes",
]
