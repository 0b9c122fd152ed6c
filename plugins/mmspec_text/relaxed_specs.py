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
JUDGE = RuleSpec(
    name="judge",
    factory="mmspec_text.rules.judge:Judge",
    needs=frozenset({"discrete", "chain", "hidden"}),
    offers=frozenset({"redraw"}),
    exactness="lossy",
    summary="Accept a draft that a trained layer on the target's states finds right.",
    paper="https://arxiv.org/abs/2501.19309",
    options="mmspec_text.rules.judge:JudgeOptions",
)
RELAXED_RULES = (ROLLBACK, JUDGE)
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
    MethodSpec(
        name="judge",
        drafter="draft-model",
        rule="judge",
        needs=frozenset({"text"}),
        exactness="lossy",
        summary="A smaller model drafts; what a trained judge finds right stays.",
        paper="https://arxiv.org/abs/2501.19309",
    ),
)
