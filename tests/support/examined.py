"""The self-check looks at one model of an architecture a process: the next ones with the same code are taken.

Tests make hundreds of small models, and spend a sixth of their time on examining them. A model that is refused is
examined every time; so is one with a method of its own, with weights elsewhere, or whose code or configuration was
changed (`mmspec.hosts.fingerprint.arithmetic`). Tests that change our code put `RIGHT` back, and tests of the check
itself import it by its name. The slow tier examines every model.
"""

from collections.abc import Hashable
from types import FunctionType, MethodType

from mmspec.hosts import self_check
from mmspec.hosts.fingerprint import arithmetic
from mmspec.hosts.model_info import ModelInfo

RIGHT = self_check.examine
"""The check as it is."""


def examine_once() -> None:
    """Remember what was found sound, until the process ends."""
    sound: dict[Hashable, self_check.Finding] = {}

    def examine(model_info: ModelInfo, rows: int | None = None) -> self_check.Finding:
        model = model_info.model
        own = any(isinstance(value, FunctionType | MethodType) for value in vars(model).values())
        if own or rows is not None or any(weight.is_meta for weight in model.parameters()):
            return RIGHT(model_info, rows)
        weights = tuple((name, each.shape, bool(each.isfinite().all())) for name, each in model.named_parameters())
        ops = tuple((name, type(op)) for name, op in model_info.ops.items())
        key = type(model), arithmetic(model), weights, ops
        if key in sound:
            return sound[key]
        finding = RIGHT(model_info)
        if finding.manner is not None:
            sound[key] = finding
        return finding

    self_check.examine = examine
