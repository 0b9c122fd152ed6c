"""Drafters that need nothing but a text, as proposers of vLLM (`speculative_config`, method `custom_class`).

vLLM takes a dotted path as its draft model, imports the class, and calls it with its configuration:

    vllm serve MODEL --speculative-config '{"model": "mmspec.bridges.vllm.suffix", "num_speculative_tokens": 8}'

The last word is a drafter's name with `_` for `-`; drafters of other plugins work, too. vLLM verifies the drafts by its
own rule. Its present runner (V2) has no such method, so that it falls back to V1, and says so. The calls are those of
vLLM 0.33.0 (`tests/bridges/vllm-0.33.0.json`); the interface is experimental there.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from mmspec.core.capabilities import TargetAware
from mmspec.core.drafters.host import DraftsTexts, HostDrafter
from mmspec.registry import installed
from mmspec.registry.suggest import unknown


class VllmHostProposer:
    """A proposer for one worker of vLLM, whose configuration says `speculative_config.num_speculative_tokens`; refuses
    a drafter that needs more than a text.
    """

    def __init__(self, vllm_config: Any, drafter: str) -> None:
        self._k = int(vllm_config.speculative_config.num_speculative_tokens)
        self._drafter = drafter_of_texts(drafter)

    def propose(
        self,
        sampled_token_ids: Sequence[Sequence[int]],
        num_tokens_no_spec: np.ndarray,
        token_ids_cpu: np.ndarray,
        slot_mappings: Any = None,
    ) -> list[list[int]]:
        """Drafts of all requests of a step, which have just been given `sampled_token_ids`: nothing while the prompt is
        still read; such a request gets no draft.

        `token_ids_cpu [request, longest]` are their texts, `num_tokens_no_spec [request]` the lengths, these tokens
        included. `slot_mappings` is vLLM's own, and not read.
        """
        asked = [row for row, new in enumerate(sampled_token_ids) if len(new)]
        texts = [token_ids_cpu[row, : num_tokens_no_spec[row]].tolist() for row in asked]
        drafts: list[list[int]] = [[] for _ in sampled_token_ids]
        if not texts or not self._k:
            return drafts
        for row, text, draft in zip(asked, texts, self._drafter.propose(texts, self._k), strict=True):
            room = token_ids_cpu.shape[1] - len(text)
            drafts[row] = [int(token) for token in draft[: min(self._k, room)]]
        return drafts


def drafter_of_texts(name: str) -> HostDrafter:
    """A drafter by name, with its default options, as a function of texts; refuses one that needs a model, hidden
    states or trees.
    """
    registry = installed()
    specs = [spec for spec in registry.components("drafter") if spec.name.replace("-", "_") == name.replace("-", "_")]
    if not specs:
        raise ValueError(unknown("drafter", name, [spec.name for spec in registry.components("drafter")]))
    try:
        drafter = specs[0].load()()
    except TypeError as error:
        raise ValueError(f"the drafter {name!r} needs more than a text: {error}") from error
    if isinstance(drafter, DraftsTexts):
        return drafter.of_texts()
    if isinstance(drafter, HostDrafter) and not isinstance(drafter, TargetAware):
        return drafter
    raise ValueError(f"the drafter {name!r} needs more than a text, and an engine shows it nothing else")


def __getattr__(name: str) -> Callable[[Any], VllmHostProposer]:
    """The proposer of a drafter, which vLLM calls with its configuration."""
    if name.startswith("_"):
        raise AttributeError(name)
    return partial(VllmHostProposer, drafter=name)
