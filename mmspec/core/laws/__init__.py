"""Laws couple: a distribution at every node, and how it is tied to another one."""

from mmspec.core.laws.categorical import Categorical
from mmspec.core.laws.gaussian import Gaussian
from mmspec.core.laws.law import Law, take_nodes, where_nodes
from mmspec.core.laws.mixed import Mixed, couple, dense
from mmspec.core.laws.point_mass import PointMass

__all__ = ["Categorical", "Gaussian", "Law", "Mixed", "PointMass", "couple", "dense", "take_nodes", "where_nodes"]
