"""Janus as a model of pictures."""

from transformers import JanusForConditionalGeneration


class JanusForImages(JanusForConditionalGeneration):
    """transformers' Janus, unchanged; the class tells the registry that it is used for pictures.

    A Janus writes texts and draws pictures; transformers chooses with an argument of `generate`. Here the class
    chooses the target: `JanusForConditionalGeneration` is a language model to `mmspec.enable`, and this class, which
    loads the same files, is a model of pictures. `JanusTarget` takes both.

    Example:
        ```python
        model = JanusForImages.from_pretrained("deepseek-community/Janus-Pro-1B")
        ```
    """
