"""What plugins of language models share.

* `corpus`, `held_out`: the text that shipped models learn, and the held-out pieces for benchmarks.
* `training`, `train_command`, `cards`: recipes, `mmspec train` commands, model cards.
* `pipeline`: `TextPipeline`.
* `demo`: `mmspec demo` commands.
* `bench/`: `mmspec bench` commands.
"""
