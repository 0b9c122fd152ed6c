"""The functions that users call: `enable`, `disable` and `custom_generate`."""

from mmspec.api.custom_generate import custom_generate
from mmspec.api.enable import Enabled, disable, enable

__all__ = ["Enabled", "custom_generate", "disable", "enable"]
