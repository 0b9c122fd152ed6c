"""What users call: `enable`, `custom_generate`."""

from mmspec.faces.custom_generate import custom_generate
from mmspec.faces.enable import Enabled, disable, enable

__all__ = ["Enabled", "custom_generate", "disable", "enable"]
