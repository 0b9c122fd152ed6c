"""The common parts of plugins of language models.

* `pipeline`: `TextPipeline`.
* `demo`: `mmspec demo` commands.
* `bench/`: `mmspec bench` commands.
* `small_model`: drafters with a smaller language model; `tree_form`: the options of their trees.
* `corpus`: files of texts, or of ids, that drafters count or search.
"""
