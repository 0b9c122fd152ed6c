"""The first minute: versions, the machine's limits, and whether every part that the other steps need is there."""

import importlib
import os
import platform
import sys
import time
from importlib.metadata import PackageNotFoundError, version

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from mmspec.api.build import decoder_for
from mmspec.core import kernels
from mmspec.hosts.loading import load_model
from tools.bench.core.machine import launch_seconds, measure_machine
from tools.gpu.common import GREEDY, HALF, MODES, Step

PACKAGES = (
    "torch", "transformers", "triton", "diffusers", "pydantic", "pluggy", "numpy", "einops", "typer", "rich",
    "huggingface_hub", "safetensors", "tokenizers", "gguf", "pytest", "pytest-timeout", "pytest-xdist",
)  # fmt: skip
PARTS = ("mmspec_text.drafters.eagle", "mmspec_ssm.plugin", "mmspec.hosts.flex_attention", "diffusers")


def present(step: Step) -> bool:
    """Whether all parts can be imported; versions and faults are lines."""
    found, bad = {}, []
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "missing"
    step.say("versions", python=platform.python_version(), **found)
    for name in PARTS:
        try:
            importlib.import_module(name)
        except Exception as error:
            bad.append(name)
            step.say("import", module=name, failed=f"{type(error).__name__}: {str(error)[:300]}")
    return not bad


def machine(step: Step) -> None:
    if not step.dry:
        card = torch.cuda.get_device_properties(0)
        capability = list(torch.cuda.get_device_capability())
        about = {"memory_GB": round(card.total_memory / 1e9, 1), "processors": card.multi_processor_count}
        cudnn = torch.backends.cudnn.version()
        step.say("device", name=card.name, **about, capability=capability, cudnn=cudnn, cpus=os.cpu_count())
    found = measure_machine(step.device, HALF, step.dry)
    rates = {"copy_TBs": round(found.bandwidth / 1e12, 3), "bf16_TFLOPs": round(found.arithmetic / 1e12, 1)}
    why_not = kernels.why_not(step.device.type, step.device.index)
    step.say("machine", **rates, launch_us=round(1e6 * launch_seconds(step.device), 2), no_kernels=why_not)


def attention(step: Step) -> None:
    """What a masked call of torch's attention costs the host at a shape that it has not seen."""

    def call(places: int, queries: int = 64, masked: bool = True) -> float:
        q, k = (torch.randn(1, 8, n, 64, device=step.device, dtype=HALF) for n in (queries, places))
        mask = torch.ones(1, 1, queries, places, device=step.device, dtype=torch.bool) if masked else None
        step.sync()
        began = time.perf_counter()
        scaled_dot_product_attention(q, k, k, attn_mask=mask)
        step.sync()
        return round(1e3 * (time.perf_counter() - began), 3)

    call(512)
    new, known = ([call(576 + 64 * i) for i in range(6)] for _ in range(2))
    growing = [call(600 + i, 1, masked=False) for i in range(6)]
    step.say("attention", masked_new_shape_ms=new, masked_known_shape_ms=known, one_query_growing_ms=growing)


def first_tokens(step: Step) -> None:
    """Plain and drafted greedy texts on the CPU and on the device, and in every mode there."""
    texts: dict[str, Tensor] = {}
    for place in dict.fromkeys(("cpu", step.device.type)):
        model = load_model("mmspec/text-1m", place, torch.float32)
        given = torch.arange(5, 25, device=place)[None]
        texts[place] = decoder_for(model, "plain").generate(given, 24, warp=GREEDY).units[0].cpu()
    step.say("first tokens", cpu_equals_device=bool(torch.equal(*(texts[d] for d in ("cpu", step.device.type)))))
    for mode, compile in MODES.items():
        began = time.monotonic()
        found = decoder_for(model, "prompt-lookup", k=5, compile=compile).generate(given, 24, warp=GREEDY)
        same = bool(torch.equal(found.units[0].cpu(), texts[place]))
        took = round(time.monotonic() - began, 1)
        step.say(
            "first tokens",
            mode=mode,
            equals_plain=same,
            captured=found.report.compiled or found.report.recorded,
            first_call_seconds=took,
        )


def main() -> None:
    step = Step("smoke")
    complete = present(step)
    step.section("machine", lambda: machine(step))
    step.section("attention", lambda: attention(step))
    step.failed = False  # without the two above the other steps can run
    step.section("first tokens", lambda: first_tokens(step))
    if complete and not step.failed:
        step.say("done")
    sys.exit(0 if complete and not step.failed else 1)


if __name__ == "__main__":
    main()
