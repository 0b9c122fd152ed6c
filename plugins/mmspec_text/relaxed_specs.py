"""What the relaxed rules of the text plugin are, and their methods. Imports no torch."""

from mmspec.registry import MethodSpec, RuleSpec

ROLLBACK = RuleSpec(
    name="rollback",
    factory="mmspec_text.rules.rollback:Rollback",
    needs=frozenset({"discrete", "chain"}),
    offers=frozenset({"redraw"}),
    exactness="lossy",
    summary="Accept a draft unless the target finds it very unlikely.",
    paper="https://arxiv.org/abs/2302.07863",
    options="mmspec_text.rules.rollback:RollbackOptions",
)
RELAXED_RULES = (ROLLBACK,)
RELAXED_METHODS = (
    MethodSpec(
        name="bild",
        drafter="draft-model",
        rule="rollback",
        needs=frozenset({"text"}),
        exactness="lossy",
        defaults={"sure": 0.6},
        summary="A smaller model writes while it is sure; the target corrects what is unlikely.",
        paper="https://arxiv.org/abs/2302.07863",
    ),
)
