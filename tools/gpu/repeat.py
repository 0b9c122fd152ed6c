"""Does an equal pass give equal numbers? LlamaGen-L's shape, bfloat16: the first module whose output differs."""

from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from mmspec.api.build import decoder_for
from mmspec.core.warp import Warp
from tools.gpu.common import Step, rooted
from tools.gpu.equality import parted
from tools.gpu.pictures import GUIDANCE, random


def full_sums() -> None:
    """Sums of products in float32, and in one part."""
    matmul: Any = torch.backends.cuda.matmul
    matmul.allow_bf16_reduced_precision_reduction = (False, False)


SWITCHES: dict[str, Callable[[], None]] = {
    "as it is": lambda: None,
    "no reduced precision": full_sums,
    "and no cuDNN attention": lambda: torch.backends.cuda.enable_cudnn_sdp(False),
}
"""Turned on one after the other; CUDA_LAUNCH_BLOCKING=1 and CUBLAS_WORKSPACE_CONFIG=:4096:8 go before the command."""


def outputs(model: nn.Module, work: Callable[[], Any]) -> list[tuple[str, Tensor]]:
    """Copies of every module's output in one call, in the order in which they end."""
    found: list[tuple[str, Tensor]] = []

    def keep(name: str, _module: nn.Module, _given: Any, out: Any) -> None:
        out = out[0] if isinstance(out, tuple) else out
        if isinstance(out, Tensor):
            found.append((name, out.detach().clone()))

    hooks = [module.register_forward_hook(partial(keep, name)) for name, module in model.named_modules()]
    try:
        work()
    finally:
        for hook in hooks:
            hook.remove()
    return found


def passes(step: Step, model: Any, task: Any, switch: str, nodes: int) -> None:
    SWITCHES[switch]()
    target: Any = decoder_for(model, "plain").target
    started = target.start_fixed(task.condition, 1, nodes)
    draft = rooted(torch.zeros(1, dtype=torch.int64, device=step.device), list(range(-1, nodes - 2)))
    work = partial(target.verify, started.cache, draft)
    first, differ = outputs(model, work), Counter[str]()
    tries = 5 if step.dry else 60
    for _ in range(tries):
        again = zip(first, outputs(model, work), strict=True)
        differ[next((name for (name, a), (_, b) in again if not torch.equal(a, b)), "")] += 1
    equal = differ.pop("", 0)
    step.say("repeat", nodes=nodes, switch=switch, tries=tries, equal=equal, first_to_differ=dict(differ))


def calls(step: Step, model: Any, task: Any) -> None:
    decoder, new = decoder_for(model, "plain", compile=False), 24 if step.dry else 128
    warp = Warp(guidance=GUIDANCE)
    runs = [decoder.generate(task.condition, new, seed=[0], warp=warp).units for _ in range(3)]
    step.say("call", parted=[parted(run, runs[0]) for run in runs[1:]])


def main() -> None:
    step = Step("repeat")
    model, (task, _) = random(step, "large")
    for switch in SWITCHES:
        for nodes in (1, 2, 4, 8, 16) if switch == "as it is" else (1,):
            step.section("repeat", partial(passes, step, model, task, switch, nodes), 8, nodes=nodes, switch=switch)
        step.section("call", partial(calls, step, model, task), 8, switch=switch)


if __name__ == "__main__":
    with torch.no_grad():
        main()
