"""A pipeline of diffusers whose denoiser drafts for itself: `python examples/denoising.py NAME out.png`.

Several steps are drafted and checked in one pass of the denoiser. The method is lossless: pictures have the
distribution of the unmodified pipeline's, and are others.
"""

import sys

import torch
from diffusers import DDPMPipeline

import mmspec


def main(name: str = "google/ddpm-cat-256", out: str = "denoised.png") -> None:
    pipe = DDPMPipeline.from_pretrained(name)
    with mmspec.enable(pipe, "speculative-denoising") as spec:
        drawn = pipe(num_inference_steps=100, generator=torch.Generator().manual_seed(0))
    drawn.images[0].save(out)
    print(spec.report)


if __name__ == "__main__":
    main(*sys.argv[1:3])
