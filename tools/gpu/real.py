"""A model that people run, through `mmspec.enable`, beside transformers' own ways: whole calls, prompts included.

`start` tells what the beginning of a call takes, for prompts of lengths that were seen and that are new. The folder
`--home` has `model.gguf` or what `train_head` made of it; its own head, if there is one, is in `--home/head`.
"""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from statistics import mean, median
from typing import Any

import torch
from torch import Tensor

import mmspec
from mmspec.api.build import decoder_for
from mmspec.bench.timing import timed
from mmspec.hosts.loading import load_model, load_tokenizer
from tools.gpu.common import HALF, Step
from tools.gpu.train_head import PROMPTS, convert

HEAD = "HEAD"  # in the place of the head's name
OURS: Mapping[str, Mapping[str, Any]] = {
    "auto": {"method": "auto"},
    "plain": {"method": "plain"},
    "token-recycling": {"method": "token-recycling"},
    "prompt-lookup 10": {"method": "prompt-lookup", "k": 10},
    "eagle tree": {"method": "eagle", "drafter": HEAD},
    "eagle chain 4": {"method": "eagle", "drafter": HEAD, "k": 4, "form": "chain"},
    "suffix 10": {"method": "suffix", "k": 10},
}
THEIRS: Mapping[str, Mapping[str, Any]] = {
    "transformers": {},
    "transformers, static": {"cache_implementation": "static"},
    "transformers, lookup 10": {"prompt_lookup_num_tokens": 10},
}
LAWS: Mapping[str, Mapping[str, Any]] = {
    "greedy": {"do_sample": False},
    "T 0.8": {"do_sample": True, "temperature": 0.8, "top_k": 0},
}
REPEATS = 3  # over all prompts; the first one records or compiles, and is told apart
LENGTHS = (41, 57, 73, 89, 105, 121)  # of prompts, none of which a kernel has seen before


class Real:
    """The model, its prompts and its head."""

    def __init__(self, step: Step, dtype: torch.dtype) -> None:
        home = step.arguments.home
        name = "mmspec/text-14m" if step.dry else str(home / "hf")
        own = home / "head"
        self.head = "mmspec/text-14m-eagle3" if step.dry else str(own) if own.is_dir() else "mmspec/smollm2-eagle3"
        self.step, self.new = step, 8 if step.dry else 128
        self.model = load_model(name, str(step.device), torch.float32 if step.dry else dtype)
        how: dict[str, Any] = {"add_generation_prompt": True, "return_tensors": "pt", "return_dict": True}
        tokenizer = load_tokenizer(name)
        asked = PROMPTS[: 1 if step.dry else None]
        if tokenizer.chat_template is None:
            self.prompts = [tokenizer(text, return_tensors="pt") for text in asked]
        else:
            turns = ([{"role": "user", "content": text}] for text in asked)
            self.prompts = [tokenizer.apply_chat_template(turn, **how) for turn in turns]
        self.prompts = [{name: ids.to(step.device) for name, ids in prompt.items()} for prompt in self.prompts]

    def written(self, prompt: Mapping[str, Tensor], **how: Any) -> list[int]:
        torch.manual_seed(0)
        ids: Tensor = self.model.generate(**prompt, max_new_tokens=self.new, eos_token_id=None, **how)
        return ids[0, prompt["input_ids"].shape[1] :].tolist()

    def seconds(self, **how: Any) -> list[float]:
        """Of every repeat over all prompts."""

        def all_of_them() -> None:
            for prompt in self.prompts:
                self.written(prompt, **how)

        return [timed(all_of_them, str(self.step.device)) for _ in range(REPEATS)]

    def tell(self, contestant: str, law: str, seconds: list[float], **more: Any) -> None:
        rate = len(self.prompts) * self.new / min(seconds[1:])
        figures = {"tokens_per_second": round(rate, 1), "first_seconds": round(seconds[0], 2)}
        self.step.say("real", contestant=contestant, law=law, **figures, **more)

    def theirs(self, contestant: str, law: str) -> None:
        self.tell(contestant, law, self.seconds(**LAWS[law], **THEIRS[contestant]))

    def enabled(self, contestant: str, **more: Any) -> Any:
        how: dict[str, Any] = dict(OURS[contestant])
        how |= {"drafter": self.head} if how.get("drafter") == HEAD else {}
        return mmspec.enable(self.model, how.pop("method"), **how, **more)

    def ours(self, contestant: str, law: str, compile: bool | None) -> None:
        with self.enabled(contestant, compile=compile) as handle:
            seconds = self.seconds(**LAWS[law])
            report = handle.report
        found = {"acceptance_length": round(report.acceptance_length, 2), "recorded": report.recorded}
        phases = {name: round(1e3 * spent, 1) for name, spent in report.seconds.items()}
        mode = "compiled" if compile else "default"
        self.tell(contestant, law, seconds, mode=mode, **found, last_call_ms=phases, why=handle.why[:60])

    def equal(self, contestant: str, law: str) -> None:
        """In half precision: to the bit plain decoding of its width."""
        with self.enabled(contestant, shape="one") as handle:
            width, mine = handle.width, [self.written(prompt, **LAWS[law]) for prompt in self.prompts]
        with mmspec.enable(self.model, "plain", shape=width):
            plain = [self.written(prompt, **LAWS[law]) for prompt in self.prompts]
        same = sum(a == b for a, b in zip(mine, plain, strict=True))
        self.step.say("equal", contestant=contestant, law=law, width=width, equal=same, texts=len(plain))

    def start(self, cudnn: bool) -> None:
        """Milliseconds of the model's own pass and of a call's beginning, over new lengths and over those again."""
        decoder, device = decoder_for(self.model, "plain"), str(self.step.device)
        vocab, before = int(self.model.config.vocab_size), torch.backends.cuda.cudnn_sdp_enabled()
        more = 0 if cudnn else 7  # other lengths than before
        prompts = [self.step.prompt(1, length + more, vocab) for length in LENGTHS]
        ways = {
            "own": lambda prompt: self.model(**prompt, use_cache=True, logits_to_keep=1),
            "ours": lambda prompt: decoder.start(prompt, self.new, seed=0),
        }
        torch.backends.cuda.enable_cudnn_sdp(cudnn)
        try:
            with torch.no_grad():
                for way, begin in ways.items():
                    for seen in ("new", "again"):
                        spent = [1e3 * timed(partial(begin, prompt), device) for prompt in prompts]
                        figures = {"median_ms": round(median(spent), 2), "mean_ms": round(mean(spent), 2)}
                        self.step.say("start", way=way, lengths=seen, cudnn=cudnn, **figures)
        finally:
            torch.backends.cuda.enable_cudnn_sdp(before)


def main() -> None:
    step = Step("real")
    home: Path = step.arguments.home
    if not step.dry and not (home / "hf").is_dir():
        step.section("convert", partial(convert, home), 20)
    real = Real(step, HALF)
    for law in LAWS:
        for contestant in OURS:
            step.section("ours", partial(real.ours, contestant, law, None), 6, contestant=contestant, law=law)
            if contestant == "auto":  # what it is measured against stands next to it
                for other in THEIRS:
                    step.section("theirs", partial(real.theirs, other, law), 12, contestant=other, law=law)
    for cudnn in (True, False):
        step.section("start", partial(real.start, cudnn), 6, cudnn=cudnn)
    for contestant in ("prompt-lookup 10", "eagle chain 4"):
        step.section("equal", partial(real.equal, contestant, "T 0.8"), 8, contestant=contestant)
    for contestant in ("plain", "auto", "eagle chain 4"):
        step.section("compiled", partial(real.ours, contestant, "greedy", True), 30, contestant=contestant)
    step.say("done")


if __name__ == "__main__":
    main()
