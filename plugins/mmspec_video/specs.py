"""The specs of the video plugin; its classes read their facts here. Imports no torch."""

from mmspec.registry import DefaultMethod, DrafterSpec, RuleSpec, TargetSpec

PIPELINE = "mmspec_video.pipeline:NextFramePipeline"
PAPER = "https://arxiv.org/abs/2506.01380"
FRAMES = TargetSpec(
    name="frames",
    factory="mmspec_video.targets.frames:FramesTarget",
    offers=frozenset({"discrete", "tree", "grow", "external"}),
    summary="Frames from actions by denoising, with the keys of earlier frames.",
    paper=PAPER,
    pipeline=PIPELINE,
    default_methods=(DefaultMethod(method="branch-prediction", k=1),),
)
TOKEN_FRAMES = TargetSpec(
    name="token-frames",
    factory="mmspec_video.targets.token_frames:TokenFramesTarget",
    offers=frozenset({"discrete", "tree", "window", "grow", "truncate", "frames"}),
    summary="Frames as codes, actions as forced units between them.",
    paper="https://arxiv.org/abs/2504.08388",
    pipeline=PIPELINE,
    default_methods=(DefaultMethod(method="frame-gs-sjd", k=32),),
)
ACTION_REPEAT = DrafterSpec(
    name="action-repeat",
    factory="mmspec_video.drafters.action_repeat:ActionRepeat",
    needs=frozenset({"discrete", "external"}),
    offers=frozenset({"chain"}),
    summary="The player goes on doing what was done last.",
    paper=PAPER,
)
ACTION_MODEL = DrafterSpec(
    name="action-model",
    factory="mmspec_video.drafters.action_model:ActionModel",
    needs=frozenset({"discrete", "external"}),
    offers=frozenset({"tree"}),
    summary="What the player did after the same actions before, several guesses at once.",
    paper=PAPER,
    options="mmspec_video.drafters.action_model:ActionModelOptions",
)
# Named apart from the image plugin's, so that a name alone is enough to say which.
FRAME_JACOBI = DrafterSpec(
    name="frame-jacobi",
    factory="mmspec_video.drafters.frame_jacobi:FrameJacobi",
    needs=frozenset({"redraw", "discrete"}),
    offers=frozenset({"chain", "window", "q"}),
    summary="The target's own last pass over a window, filled by the frame before.",
    paper="https://arxiv.org/abs/2410.01699",
    options="mmspec_video.drafters.frame_jacobi:FrameJacobiOptions",
)
NFD = RuleSpec(
    name="nfd",
    factory="mmspec_video.rules.nfd:Nfd",
    needs=frozenset({"discrete", "external", "chain"}),
    exactness="lossy",
    summary="Frames of k + 1 actions denoised together; frames of right guesses are kept.",
    paper=PAPER,
    options="mmspec_video.rules.nfd:NfdOptions",
)
STUDENT = RuleSpec(
    name="student",
    factory="mmspec_video.rules.student:Student",
    needs=frozenset({"discrete", "external"}),
    exactness="lossy",
    summary="A student's frames where the teacher, looking once, finds them close enough.",
    paper="https://arxiv.org/abs/2303.01469",
    options="mmspec_video.rules.student:StudentOptions",
)
METHODS = (
    ACTION_MODEL.method("Frames ahead of their time, for guessed actions; equality decides.", name="branch-prediction"),
    FRAME_JACOBI.method(
        "Jacobi windows with shared noise, filled by the frame before.",
        name="frame-gs-sjd",
        needs={"frames"},
        paper="https://arxiv.org/abs/2510.24211",
    ),
    ACTION_REPEAT.method(
        "Frames of k + 1 known or repeated actions denoised together, not exact.",
        name="nfd",
        rule="nfd",
        exactness="lossy",
    ),
    ACTION_MODEL.method(
        "A student drafts frames, the teacher verifies by tolerance, not exact.",
        name="student",
        rule="student",
        exactness="lossy",
        paper="https://arxiv.org/abs/2303.01469",
    ),
)
COMPONENTS = (FRAMES, TOKEN_FRAMES, ACTION_REPEAT, ACTION_MODEL, FRAME_JACOBI, NFD, STUDENT, *METHODS)
