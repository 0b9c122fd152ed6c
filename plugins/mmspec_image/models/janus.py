"""Janus, taken for what it draws."""

from transformers import JanusForConditionalGeneration


class JanusForImages(JanusForConditionalGeneration):
    """transformers' Janus, nothing changed: its class says which of its two uses is meant.

    A Janus writes texts and draws pictures, and `generate` is told with each call which. Whoever looks for a target is
    told by the class: `JanusForConditionalGeneration` is a language model to `mmspec.enable`; this one, which loads the
    same files, is a model of pictures. `JanusTarget` takes both.

    Example:
        ```python
        model = JanusForImages.from_pretrained("deepseek-community/Janus-Pro-1B")
        ```
    """
