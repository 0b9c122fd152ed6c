"""RAPID: a model on a shortened prompt drafts for the model on the whole one."""

from mmspec_text.drafters.rapid.drafter import Rapid, RapidOptions

__all__ = ["Rapid", "RapidOptions"]
