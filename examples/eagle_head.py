"""A trained head drafts for its model: `python examples/eagle_head.py TARGET HEAD`.

The text is that of unmodified `generate` for the same seed. Any EAGLE head of the hub goes with its target.
"""

import sys
import time

import torch

import mmspec


def main(target: str = "mmspec/text-14m", head: str = "mmspec/text-14m-eagle3") -> None:
    pipe = mmspec.Pipeline.from_pretrained(target)
    model, tokenizer = pipe.model, pipe.tokenizer
    inputs = tokenizer("class Stack:\n    def push(self, item):", return_tensors="pt", return_token_type_ids=False)
    call = dict(max_new_tokens=120, do_sample=True, temperature=0.8, top_k=0)

    def timed() -> tuple[torch.Tensor, float]:
        torch.manual_seed(0)
        began = time.perf_counter()
        return model.generate(**inputs, **call), time.perf_counter() - began

    timed()  # the first call loads kernels
    stock, without = timed()
    with mmspec.enable(model, "eagle", drafter=head) as spec:
        timed()
        ours, with_head = timed()
    assert torch.equal(ours, stock)
    print(tokenizer.decode(ours[0]))
    print(spec.report)
    print(f"unmodified generate {without:.2f} s, with the head {with_head:.2f} s")


if __name__ == "__main__":
    main(*sys.argv[1:3])
