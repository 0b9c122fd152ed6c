"""An EAGLE-3 head for a GGUF model: the target writes its own chats, the head learns, its acceptance is measured.

All of it in one process, with deadlines: the folder `--home` has `model.gguf`, and receives what is made of it.
"""

import shutil
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor

from mmspec.api.build import decoder_for
from mmspec.bench.timing import called
from mmspec.core.warp import Warp
from mmspec.hosts.loading import load_model, load_tokenizer
from mmspec_text.training import written
from mmspec_text.training.data import read_data
from mmspec_text.training.recipe import DrafterRecipe
from mmspec_text.training.run import train_drafter
from tools.gpu.common import HALF, Step

TOKENS, AT_ONCE = 3_000_000, 1024
"""What the target writes, and in how many rows: a large GPU writes for 128 in the time of 1024."""
SIZES: Mapping[str, Any] = {"hard": 0.0, "draft_vocab": 8192, "own_share": 1.0}
RECIPE = DrafterRecipe(steps=2600, batch=16, context=512, depth=4, **SIZES)
DRY_RECIPE = DrafterRecipe(steps=2, batch=2, context=64, depth=3, **SIZES)
PROMPTS = (
    "Write a short story about a lighthouse.", "Explain how a bicycle stays upright.", "What is 17 times 23?",
    "Write a Python function that reverses a list.", "Give me a recipe for lentil soup.", "Who was Ada Lovelace?",
)  # fmt: skip
WAYS: Mapping[str, Mapping[str, Any]] = {
    "plain": {"method": "plain"},
    "eagle chain 4": {"method": "eagle", "k": 4, "options": {"form": "chain"}},
    "eagle tree 15": {"method": "eagle", "k": 5, "options": {"width": 4, "nodes": 15}},
    "prompt-lookup": {"method": "prompt-lookup", "k": 7},
}


def convert(home: Path) -> None:
    """From GGUF to a folder of transformers, in float32."""
    load: Any = transformers.AutoModelForCausalLM
    model = load.from_pretrained(home, gguf_file="model.gguf", dtype=torch.float32, trust_remote_code=False)
    vars(model.config).pop("quantization_config", None)
    model.hf_quantizer, model.is_quantized = None, False
    model.save_pretrained(home / "hf")
    names: Any = transformers.AutoTokenizer
    names.from_pretrained(home, gguf_file="model.gguf", trust_remote_code=False).save_pretrained(home / "hf")


def train(step: Step, home: Path) -> None:
    name = str(home / "hf")
    model, tokenizer = load_model(name, str(step.device), HALF), load_tokenizer(name)
    written.AT_ONCE = 8 if step.dry else AT_ONCE
    recipe = DRY_RECIPE if step.dry else RECIPE
    data = read_data([], 3000 if step.dry else TOKENS, model, tokenizer, recipe, {})
    folders: dict[str, Any] = {"folder": home / "head", "work": home / "work"}
    say = partial(step.say, "train")
    train_drafter("eagle3", model, tokenizer, data, recipe=recipe, name="target", say=lambda s: say(line=s), **folders)


def measure(step: Step, home: Path) -> None:
    name, new = str(home / "hf"), 8 if step.dry else 128
    model, tokenizer = load_model(name, str(step.device), torch.float32 if step.dry else HALF), load_tokenizer(name)
    turns = [[{"role": "user", "content": prompt}] for prompt in PROMPTS[: 1 if step.dry else None]]
    how: dict[str, Any] = {"add_generation_prompt": True, "return_tensors": "pt", "return_dict": True}
    asked: list[Tensor] = [tokenizer.apply_chat_template(t, **how)["input_ids"].to(step.device) for t in turns]

    def one(label: str, temperature: float) -> None:
        head: dict[str, Any] = {"drafter": str(home / "head")} if "eagle" in label else {}
        decoder = decoder_for(model, **WAYS[label], **head, shape="one", compile=None if step.dry else True)
        warp, rounds, emitted, spent = Warp.sampling(temperature), 0, 0, 0.0
        decoder.generate(asked[0], new, seed=0, warp=warp)
        for seed, ids in enumerate(asked):
            seconds, out = called(partial(decoder.generate, ids, new, seed=seed, warp=warp), str(step.device))
            rounds, emitted, spent = rounds + out.report.rounds, emitted + out.report.emitted - 1, spent + seconds
        figures = {"acceptance_length": round(emitted / rounds, 3), "ms_per_unit": round(1e3 * spent / emitted, 3)}
        by_depth = out.report.accepted_by_depth
        step.say(
            "measure", method=label, temperature=temperature, **figures, by_depth=by_depth, captured=out.report.compiled
        )

    with torch.no_grad():
        for temperature in (0.0, 0.8):
            for label in WAYS:
                step.section("measure", partial(one, label, temperature), 12, method=label, temperature=temperature)


def main() -> None:
    step = Step("train")
    home, out = step.arguments.home, step.arguments.out
    step.section("convert", partial(convert, home), 30)
    step.section("train", partial(train, step, home), 30, keep=60)
    checkpoint = home / "work" / "drafter" / "checkpoint.pt"
    if (home / "head").is_dir():
        for file in (home / "head").iterdir():
            shutil.copy(file, out / f"head-{file.name}")
        measure(step, home)
    elif checkpoint.is_file():
        shutil.copy(checkpoint, out / "checkpoint.pt")
    step.say("done")


if __name__ == "__main__":
    main()
