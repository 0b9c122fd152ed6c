"""A table of prompts, drawn by workers of Ray: `python examples/ray_batch.py pictures` (`pip install 'mmspec[ray]'`).

A row's picture depends on its id and the seed alone: not on how many workers there are, nor on how rows are batched.
"""

import sys

import ray

import mmspec

PROMPTS = ["princess", "boy", "police officer", "construction worker", "father christmas", "guardsman"]


def main(out: str = "pictures") -> None:
    table = ray.data.from_items([{"id": str(number), "prompt": prompt} for number, prompt in enumerate(PROMPTS)])
    pictures = table.map_batches(
        mmspec.Rows,
        fn_constructor_args=("mmspec/emoji",),
        fn_constructor_kwargs={"method": "gs-sjd", "guidance_scale": 4.0},
        batch_size=3,
        compute=ray.data.ActorPoolStrategy(size=1),
    ).materialize()  # else each of the next two lines would draw them
    pictures.write_parquet(out)
    print(f"{pictures.count()} pictures in {out}")


if __name__ == "__main__":
    main(*sys.argv[1:2])
