"""What the methods are whose target is not the model alone: behind a condition, or mixed. Imports no torch."""

from mmspec.registry import DrafterSpec, MethodSpec

AMBEDKAR = DrafterSpec(
    name="ambedkar",
    factory="mmspec_text.drafters.ambedkar:Ambedkar",
    offers=frozenset({"chain", "q"}),
    summary="A smaller model on the bare prompt drafts for the model behind a condition.",
    paper="https://arxiv.org/abs/2509.02133",
    options="mmspec_text.drafters.ambedkar:AmbedkarOptions",
    wrt="the model's distribution behind the condition",
)
RAPID = DrafterSpec(
    name="rapid",
    factory="mmspec_text.drafters.rapid:Rapid",
    offers=frozenset({"chain", "q"}),
    summary="A model, or the target itself, on the retrieved part of a long prompt.",
    paper="https://arxiv.org/abs/2502.20330",
    options="mmspec_text.drafters.rapid:RapidOptions",
)
CONDITIONED_DRAFTERS = (AMBEDKAR, RAPID)
CONDITIONED_METHODS = (
    MethodSpec(
        name="ambedkar",
        drafter="ambedkar",
        needs=frozenset({"text"}),
        exactness="invariant",
        summary="Drafts from the bare prompt, verified behind a text such as a constitution.",
        paper="https://arxiv.org/abs/2509.02133",
    ),
    MethodSpec(
        name="rapid",
        drafter="rapid",
        needs=frozenset({"text"}),
        exactness="invariant",
        summary="For long prompts: drafts by a model, or the target, on what is retrieved.",
        paper="https://arxiv.org/abs/2502.20330",
    ),
)
