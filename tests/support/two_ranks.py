"""One of two ranks of a tensor-parallel model on the CPU: decodes the cases of `tests/text/test_ranks.py`.

Run as `python -m tests.support.two_ranks FOLDER`, with torchrun's variables in the environment. FOLDER holds the model
and the draft model; what came out of every case is written there, as `RANK.json`.
"""

import json
import os
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM
from transformers.distributed import DistributedConfig

import mmspec

PROMPTS = torch.tensor([[3, 5, 2, 6, 4, 3, 5, 2, 6, 4], [1, 4, 6, 2, 1, 4, 6, 2, 1, 4]])
CALL: dict[str, Any] = dict(do_sample=True, top_k=0, max_new_tokens=24)
METHODS = ("plain", "prompt-lookup", "suffix", "token-recycling", "draft-model", "layer-skip")
RANK = int(os.environ.get("RANK", 0))


class Failing:
    """A drafter that repeats the last token, and fails on one rank in some rounds."""

    def __init__(self, rank: int) -> None:
        self.rank, self.rounds = rank, 0

    def propose(self, tokens: list[list[int]], k: int) -> list[list[int]]:
        self.rounds += 1
        if self.rank == RANK and self.rounds % 2:
            raise RuntimeError("no luck")
        return [row[-1:] * k for row in tokens]


class Impatient:
    """A criterion that ends rows on the second rank only, as a limit of time may."""

    def __call__(self, ids: torch.Tensor, scores: Any, **_: Any) -> torch.Tensor:
        return torch.full((len(ids),), RANK == 1 and ids.shape[1] > PROMPTS.shape[1] + 4)


def decoded(model: Any, method: str = "auto", *, seed: int = 0, prompts: Any = PROMPTS, **options: Any) -> list[Any]:
    """The ids of a call, and its rounds."""
    call = {**CALL, **options.pop("call", {})}
    with mmspec.enable(model, method, **options) as spec:
        torch.manual_seed(seed)
        ids = model.generate(prompts, attention_mask=torch.ones_like(prompts), **call)
        return [ids.tolist(), spec.report.rounds, spec.report.faults]


def methods(model: Any, small: Callable[[], Any]) -> dict[str, list[Any]]:
    """The methods that must write what one process writes."""
    options: dict[str, dict[str, Any]] = {"draft-model": {"drafter": small()}}
    return {method: decoded(model, method, k=4, **options.get(method, {})) for method in METHODS}


def cases(model: Any, small: Callable[[], Any]) -> dict[str, Any]:
    """All that is tried on two ranks; an error in place of ids is its message."""
    results: dict[str, Any] = methods(model, small)
    other = PROMPTS.clone()
    other[0, 0] = 4
    tried: dict[str, Callable[[], Any]] = {
        "goodput": lambda: decoded(model, "prompt-lookup", policy="goodput"),
        "fault on 0": lambda: decoded(model, drafter=Failing(0), k=3),
        "fault on 1": lambda: decoded(model, drafter=Failing(1), k=3),
        "compiled": lambda: decoded(model, "prompt-lookup", compile=True),
        "philox": lambda: decoded(model, "suffix", seed=RANK, noise="philox"),
        "states": lambda: decoded(model, "prompt-lookup", seed=RANK),
        "stopped": lambda: decoded(model, "plain", call={"stopping_criteria": [Impatient()]}),
        "prompts": lambda: decoded(model, "plain", prompts=other if RANK else PROMPTS),
        "length": lambda: decoded(model, "plain", prompts=PROMPTS[:, RANK:]),
        "rows": lambda: decoded(model, "plain", prompts=PROMPTS[: 2 - RANK]),
        "limit": lambda: decoded(model, "plain", call={"max_new_tokens": 8 + RANK}),
        "method": lambda: decoded(model, ("plain", "suffix")[RANK]),
        "own budgets": lambda: decoded(model, "layer-skip", policy="goodput"),
        "rule": lambda: decoded(model, "prompt-lookup", rule="rejection"),
        "after": lambda: decoded(model, "prompt-lookup", k=4),
    }
    for name, run in tried.items():
        try:
            results[name] = run()
        except ValueError as error:
            results[name] = str(error)
    return results


def main(folder: Path) -> None:
    """Decode everything on this rank."""
    warnings.simplefilter("ignore")
    config = DistributedConfig(tp_size=2)
    model = AutoModelForCausalLM.from_pretrained(folder / "model", distributed_config=config).eval()
    results = cases(model, lambda: AutoModelForCausalLM.from_pretrained(folder / "small").eval())
    results["group"] = type(model.model.layers[0].self_attn.q_proj.weight).__name__
    (folder / f"{RANK}.json").write_text(json.dumps(results))
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
