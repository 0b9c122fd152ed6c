"""A thing that is unlike what is usual: `python examples/adaptive_negative_diffusion.py "a new kind of pet" out.png`.

A pipeline of diffusers denoises; a vision-language model looks at the picture behind every second step and names the
pet that it sees, and guidance leads away from all that was named (arXiv 2510.10715). Left: without it, right: with it.
Other models may be named behind the file: a pipeline, and a vision-language model. The default ones are for a GPU.
"""

import sys

import torch
from diffusers import DiffusionPipeline
from diffusers.utils import make_image_grid
from transformers import AutoModelForImageTextToText, AutoProcessor

import mmspec

QUESTIONS = ["What is the main object in this image?", "What type of pet is it?"]


def main(
    prompt: str = "a photo of a new kind of pet",
    out: str = "new.png",
    pipeline: str = "stabilityai/stable-diffusion-3.5-medium",
    judge: str = "Qwen/Qwen2.5-VL-3B-Instruct",
) -> None:
    device, dtype = ("cuda", torch.bfloat16) if torch.cuda.is_available() else ("cpu", torch.float32)
    pipe = DiffusionPipeline.from_pretrained(pipeline, dtype=dtype).to(device)
    model = AutoModelForImageTextToText.from_pretrained(judge, dtype=dtype).to(device)
    away = mmspec.AdaptiveNegative.from_model(model, AutoProcessor.from_pretrained(judge), QUESTIONS)
    pictures = []
    for call in ({}, away.during(pipe, every=2)):
        generator = torch.Generator().manual_seed(0)
        pictures += pipe(prompt, generator=generator, num_inference_steps=28, guidance_scale=4.5, **call).images
    make_image_grid(pictures, rows=1, cols=2).save(out)
    print([(step, words) for step, _, words in away.said])


if __name__ == "__main__":
    main(*sys.argv[1:])
