"""Where one shape for a whole call is no promise that outputs are equal to the bit: layers that round by the load."""

from mmspec.hosts.passes import Passes
from mmspec.hosts.slot_cache import SlotCache
from mmspec.registry.warn import warn

EXPERTS = (
    "expert layers may round by how many units an expert gets: one shape is no promise to the bit here (measured, in "
    "bfloat16 on a CPU: 396 of 396 texts of 33 such architectures kept it)"
)
"""The warning of a call with one shape whose model has expert layers."""
STATES = (
    "on this device the states of recurrent layers are float32, which round by how many units a round keeps: one shape "
    "is no promise to the bit here (measured with such states, in bfloat16 on a CPU: 191 of 210 texts of the shipped "
    "hybrid kept it)"
)
"""The warning of a call with one shape whose model has recurrent layers, where float64 is not affordable."""


def warn_of_limits(passes: Passes, slots: SlotCache, units: int) -> None:
    """Warn of what rounds otherwise in a call of one shape.

    Args:
        passes: Runs the model.
        slots: The call's cache.
        units: The units of a pass, all rows together.
    """
    if passes.anatomy.has_experts and not passes.experts.batched(units):
        warn(EXPERTS)
    if passes.anatomy.ops and not slots.exact:
        warn(STATES)
