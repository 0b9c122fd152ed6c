"""The choices of `auto` for a text model, for the manifests of plugins with text targets; imports no torch."""

from mmspec.registry import DefaultMethod

_NOTHING = "no draft model and no card"

DEFAULT_METHODS = (
    DefaultMethod(method="draft-model", when="model", why="draft-model, because a draft model was given"),
    DefaultMethod(
        method="prompt-lookup", when="rule", why="prompt-lookup, because every rule takes its chains of copies"
    ),
    # On the CPU every node costs: chains, of which the policy takes what pays. Elsewhere trees. Drafts of two units for
    # each unit of the suffix are accepted less often than the paper's, of one, and bring more: on SmolLM2, ten prompts,
    # 1.37 tokens a pass for 1.33.
    DefaultMethod(
        method="suffix",
        k=10,
        policy="payoff",
        defaults={"factor": 2.0},
        when="cpu",
        why=f"suffix, as deep as it pays: {_NOTHING}",
    ),
    # Whose drafts are made on the device, inside of its rounds; these take equally long, whatever is drafted.
    DefaultMethod(method="auto", why=f"recycled tokens and copies of the text, in one tree: {_NOTHING}"),
)
"""Under the rule `match` a choice can cost time, and never changes the output."""
