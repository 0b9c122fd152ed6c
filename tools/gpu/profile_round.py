"""Rounds under torch's profiler: kernels, and how long the device waits; then attention kernels for packed drafts."""

import time
from collections import defaultdict
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import flex_attention
from torch.nn.functional import scaled_dot_product_attention
from torch.profiler import ProfilerActivity, profile
from transformers.masking_utils import causal_mask_function

from mmspec.api.build import decoder_for
from mmspec.core.decoder import Decoder
from mmspec.core.rules.synthetic import Synthetic
from mmspec.core.tree import TreeIndex
from mmspec.core.warp import Warp
from mmspec.hosts.flex_attention import _blocks, packed, seen
from mmspec.hosts.masks import PassGeometry
from tools.bench.core.steps import StaticTree
from tools.gpu.common import HALF, MODES, Step

BACKENDS = {
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "math": SDPBackend.MATH,
}


def attention(step: Step, nodes: int, context: int) -> None:
    """One layer of 8 B: torch's attentions under our mask, and FlexAttention as the captured pass calls it."""
    heads, width, group = (2, 16, 2) if step.dry else (8, 128, 4)
    places, found = 2 * context, dict[str, Any]()
    drawn = partial(torch.randn, device=step.device, dtype=HALF)
    q, (k, v) = drawn(1, heads, group * nodes, width), (drawn(1, heads, places, width) for _ in range(2))
    index, length = TreeIndex.chain(nodes, step.device), torch.full((1,), context, device=step.device)
    mask = PassGeometry(length, index.ancestor, index.depth, places).tree.repeat(1, 1, group, 1)

    def timed(name: str, work: Any) -> None:
        try:
            work()
            with step.alone():
                found[name] = step.device_ms(work)
        except Exception as error:
            found[name] = f"{type(error).__name__}: {str(error)[:80]}"

    timed("default", lambda: scaled_dot_product_attention(q, k, v, attn_mask=mask))
    for name, backend in BACKENDS.items():
        with sdpa_kernel(backend):
            timed(name, lambda: scaled_dot_product_attention(q, k, v, attn_mask=mask))
    for stages in () if step.dry else (None, 3):
        made = torch.compile(partial(_flex, index, nodes, places, group, stages), dynamic=False, fullgraph=True)
        timed(f"flex, stages {stages}", partial(made, q, k, v, length))
        torch.compiler.reset()
    step.say("attention", nodes=nodes, context=context, places=places, ms=found)


def _flex(index: TreeIndex, nodes: int, places: int, group: int, stages: int | None, *given: Tensor) -> Any:
    q, k, v, length = given
    geometry = PassGeometry(length, index.ancestor, index.depth, places)
    blocks = _blocks(length + nodes, nodes, places, seen(geometry, causal_mask_function))
    options: Any = None if stages is None else {"num_stages": stages}
    return flex_attention(q, k, v, block_mask=packed(blocks, group), kernel_options=options)


def rounds(step: Step, mode: str, target: Any, given: Any) -> None:
    """Rounds of 16 nodes: their time, the device's work in it, the kernels and the driver's calls."""
    decoder = Decoder(target, StaticTree(15, 15), Synthetic(), k=15, shape="one", compile=MODES[mode])
    state = decoder.start(given, 100 if step.dry else 400, warp=Warp.sampling(0.8))
    number = 2 if step.dry else 5

    def play() -> float:
        step.sync()
        began = time.perf_counter()
        for _ in range(number):
            decoder.advance(state)
        step.sync()
        return 1e3 * (time.perf_counter() - began) / number

    play()
    with step.alone():
        ms = play()
        activities = [ProfilerActivity.CPU, *([] if step.dry else [ProfilerActivity.CUDA])]
        with profile(activities=activities, acc_events=True) as profiled:
            play()
    kernels: dict[str, list[float]] = defaultdict(list)
    for event in profiled.events() or ():
        if event.device_type != torch.autograd.DeviceType.CPU:
            kernels[event.name].append(event.time_range.elapsed_us() / number)
    busy = sum(map(sum, kernels.values())) / 1e3
    averages = profiled.key_averages()
    driver = {e.key: round(e.count / number, 1) for e in averages if e.key.startswith(("cuda", "cu")) and e.count}
    most = dict(sorted(driver.items(), key=lambda item: -item[1])[:10])
    calls = round(sum(map(len, kernels.values())) / number, 1)
    figures = {"device_busy_ms": round(busy, 4), "kernels_per_round": calls, "driver_calls_per_round": most}
    step.say("profile", mode=mode, ms_per_round=round(ms, 4), **figures)
    for name, took in sorted(kernels.items(), key=lambda item: -sum(item[1]))[:16]:
        step.say("kernel", mode=mode, name=name[:110], calls=len(took) / number, us_per_round=round(sum(took), 1))
    host = sorted(averages, key=lambda event: -event.self_cpu_time_total)[:12]
    top = {e.key[:60]: [e.count // number, round(e.self_cpu_time_total / number, 1)] for e in host}
    step.say("host", mode=mode, calls_and_us_per_round=top)


def main() -> None:
    step = Step("profile")
    workload = step.workload("llama-1b")
    target, given = decoder_for(workload.model, "plain").target, workload.prompt(1, 32 if step.dry else 1024)
    for mode in step.modes():
        least = 30 if mode == "compiled" else 8
        step.section("profile", partial(rounds, step, mode, target, given), least, mode=mode)
    for context in (64,) if step.dry else (1024, 16384):
        for nodes in (1, 16, 64):
            step.section("attention", partial(attention, step, nodes, context), 10, nodes=nodes, context=context)
    step.say("done")


if __name__ == "__main__":
    with torch.no_grad():
        main()
