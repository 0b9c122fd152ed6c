"""Drawing of calls of `generate` over a decoder, and of methods whose drafts are accepted deeply."""

import random
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from mmspec.core.types import Draft
from tests.draws.claim import Case
from tests.support.random_models import noisy

ENDS = [17, 40, 41, 63, 77, 90, 91, 92, 101, 120]

LAWS: dict[str, list[Any]] = {
    "temperature": [0.5, 0.8, 1.5, 3.0],
    "top_k": [5, 20, 60],
    "top_p": [0.5, 0.9],
    "min_p": [0.05],
    "typical_p": [0.9],
    "epsilon_cutoff": [0.003],
    "eta_cutoff": [0.003],
}
"""Values of sampling."""

OTHERS: dict[str, list[Any]] = {
    "repetition_penalty": [1.2, 0.9],
    "no_repeat_ngram_size": [2, 3],
    "bad_words_ids": [[[30, 31], [50]]],
    "suppress_tokens": [[7, 8, 9]],
    "begin_suppress_tokens": [[11, 12]],
    "min_new_tokens": [4],
    "eos_token_id": [ENDS, 41],
    "pad_token_id": [5],
    "exponential_decay_length_penalty": [[4, 1.2]],
    "remove_invalid_values": [True],
    "renormalize_logits": [True],
    "forced_eos_token_id": [9],
    "use_cache": [False],
    "encoder_repetition_penalty": [1.3],
    "sequence_bias": [[[[10], 3.0], [[20, 21], 4.0]]],
}
"""Values that a call may name, or the model's own generation configuration."""

Made = Callable[[Any, Tensor], dict[str, Any]]
"""Of a model and the text `[row, column]` that it writes: arguments of `enable`."""


class KnownTree:
    """Drafts what is known to come, with a wrong sibling before every right unit and a wrong unit at the end.

    So neither slots nor numbers of nodes agree with depths.
    """

    offers = frozenset({"chain", "tree"})
    needs = frozenset({"discrete"})

    def __init__(self, text: Tensor, wrong: bool = True) -> None:
        self.text, self.wrong = text, wrong  # `[row, new]`; whether there are siblings

    def bind(self, target: Any) -> None:
        """It needs nothing of a target."""

    def width(self, k: int) -> int:
        return 2 * k if self.wrong else k

    def start(self, state: Any, inputs: Any) -> None:
        """It keeps nothing of a call."""

    def propose(self, state: Any, k: int, noise: Any) -> Draft:
        """At most `k` levels behind what every row has."""
        k = min(k, state.most_room) if hasattr(state, "most_room") else k
        at = torch.tensor(state.host.emitted)[:, None] + torch.arange(k)
        right = self.text.gather(1, at.clamp(max=self.text.shape[1] - 1))
        other = torch.where(right == 3, 4, 3)
        if not self.wrong:
            return Draft.chain(torch.cat([right[:, :-1], other[:, -1:]], 1))
        parents = [node for level in range(k) for node in [2 * level - 1 if level else -1] * 2]
        return Draft.tree(torch.stack([other, right], 2).flatten(1), parents)

    def observe(self, state: Any, step: Any) -> None:
        """It learns nothing."""


METHODS: dict[str, Made] = {
    "known-chain": lambda model, text: {"drafter": KnownTree(text, wrong=False)},
    "known-tree": lambda model, text: {"drafter": KnownTree(text)},
    "plain": lambda model, text: {"method": "plain"},
    "prompt-lookup": lambda model, text: {"method": "prompt-lookup"},
    "suffix": lambda model, text: {"method": "suffix"},
    "token-recycling": lambda model, text: {"method": "token-recycling"},
    "jacobi-text": lambda model, text: {"method": "jacobi-text"},
    "lookahead": lambda model, text: {"method": "lookahead"},
    "draft-model": lambda model, text: {"method": "draft-model", "drafter": noisy(model, 0.05)},
    "draft-tree": lambda model, text: {"method": "draft-tree", "drafter": noisy(model, 0.05)},
}
OFTEN = ["known-chain"] * 3 + ["known-tree"] * 4 + ["plain", "prompt-lookup", "suffix", "token-recycling"]


def draw_call(dice: random.Random, length: int, new: int) -> Case:
    """Arguments of a call and of the model's own generation configuration, and a method."""
    case: Case = {"method": dice.choice(OFTEN if dice.random() < 0.8 else list(METHODS))}
    if case["method"] != "plain" and dice.random() < 0.5:
        case["k"] = dice.choice([1, 2, 3, 7, 12])
    if dice.random() < 0.5:
        case["call.do_sample"] = True
        for name in dice.sample(list(LAWS), dice.choice([0, 1, 1, 2])):
            case[f"call.{name}"] = dice.choice(LAWS[name])
        case.setdefault("call.top_k", 0)
    for name in dice.sample(list(OTHERS), dice.choice([0, 0, 0, 1, 2])):
        case[f"{dice.choice(['call', 'model'])}.{name}"] = dice.choice(OTHERS[name])
    if dice.random() < 0.8:
        case["dict"] = True
    if dice.random() < 0.1:
        case["model.max_length"] = length + new - dice.randint(0, 5)
    if dice.random() < 0.05:
        case["call.num_return_sequences"] = 2
        case["call.do_sample"] = True
    return case
