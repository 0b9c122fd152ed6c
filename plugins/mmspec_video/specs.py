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
ACTION_REPEAT = DrafterSpec.row(
    "action-repeat",
    "mmspec_video.drafters.action_repeat:ActionRepeat",
    "discrete external → chain",
    "The player goes on doing what was done last.",
    PAPER,
)
ACTION_MODEL = DrafterSpec.row(
    "action-model",
    "mmspec_video.drafters.action_model:ActionModel",
    "discrete external → tree",
    "What the player did after the same actions before, several guesses at once.",
    PAPER,
)
# Named apart from the image plugin's, so that a name alone is enough to say which.
FRAME_JACOBI = DrafterSpec.row(
    "frame-jacobi",
    "mmspec_video.drafters.frame_jacobi:FrameJacobi",
    "redraw discrete → chain window q",
    "The target's own last pass over a window, filled by the frame before.",
    "https://arxiv.org/abs/2410.01699",
)
NFD = RuleSpec.row(
    "nfd",
    "mmspec_video.rules.nfd:Nfd",
    "discrete external chain",
    "Frames of k + 1 actions denoised together; frames of right guesses are kept.",
    PAPER,
    exactness="lossy",
)
STUDENT = RuleSpec.row(
    "student",
    "mmspec_video.rules.student:Student",
    "discrete external",
    "A student's frames where the teacher, looking once, finds them close enough.",
    "https://arxiv.org/abs/2303.01469",
    exactness="lossy",
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
