"""What plugins of language models share.

* `pipeline`: `TextPipeline`.
* `demo`: `mmspec demo` commands.
* `bench/`: `mmspec bench` commands.
* `cards`: what the cards of shipped models say.
"""
