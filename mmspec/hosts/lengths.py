"""Which calls are too long for a model: refused or warned of before anything runs."""

from mmspec.hosts.anatomy import Anatomy
from mmspec.hosts.slot_layer import BLOCK
from mmspec.registry.warn import warn


def refuse_length(anatomy: Anatomy, context: int | None, longest: int, limit: int, width: int) -> None:
    """Refuse a call that does not fit, or that could not be continued exactly.

    Args:
        anatomy: The facts about the model.
        context: The most positions of a prompt; None: no limit.
        longest: Units of the longest prompt.
        limit: New units wanted per row.
        width: The most nodes of a draft, root included.

    Raises:
        ValueError: The prompt is too long, or the call goes beyond the position up to which drafts can be verified.
    """
    if context is not None and longest > context:
        raise ValueError(f"the prompt has {longest} tokens and the model's context is {context}; shorten it")
    if context is not None and anatomy.position_table and longest + limit - 1 > context:
        warn(
            f"{longest} tokens of prompt and {limit} new ones do not fit the model's table of {context} "
            "positions; where transformers fails, text goes on at the last position: ask for fewer tokens"
        )
    reach, slots = anatomy.reach, -(-(longest + limit + width) // BLOCK) * BLOCK
    if reach is not None and (slots if anatomy.reach_in_slots else longest + limit) > reach:
        raise ValueError(
            f"{longest} tokens of prompt and {limit} new ones go beyond position {reach}, and "
            f"{anatomy.reach_reason}: drafts could not be verified exactly; ask for fewer tokens, or "
            "disable() first"
        )
