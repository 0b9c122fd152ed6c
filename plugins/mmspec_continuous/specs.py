"""The specs of the continuous plugin; its classes read their facts here. Imports no torch."""

from mmspec.registry import AdapterSpec, DefaultMethod, DrafterSpec, MethodSpec, RuleSpec, TargetSpec

REFLECTION, CSPD = "https://arxiv.org/abs/2501.05370", "https://arxiv.org/abs/2411.11925"  # papers
CONTINUOUS_AR = TargetSpec(
    name="continuous-ar",
    factory="mmspec_continuous.targets.continuous:ContinuousTarget",
    offers=frozenset({"continuous", "window", "grow", "truncate"}),
    summary="Causal AR over continuous tokens, with a denoising or a mixture head.",
    paper="https://arxiv.org/abs/2406.11838",
    pipeline="mmspec_continuous.pipeline:ContinuousTextToImagePipeline",
    default_methods=(DefaultMethod(method="reflection", k=16),),
)
# Named apart from other plugins' discrete drafters, so that a name alone is enough to say which.
CONTINUOUS_JACOBI = DrafterSpec.row(
    "continuous-jacobi",
    "mmspec_continuous.drafters.jacobi:ContinuousJacobi",
    "redraw continuous → chain window q",
    "The target's own last pass over a window of tokens; no model, no training.",
    "https://arxiv.org/abs/2410.01699",
)
CONTINUOUS_DRAFT_MODEL = DrafterSpec.row(
    "continuous-draft-model",
    "mmspec_continuous.drafters.draft_model:ContinuousDraftModel",
    "continuous → chain q",
    "A smaller model of the family, of the same tokens and denoising steps.",
    REFLECTION,
)
CONTINUOUS_SETS = DrafterSpec.row(
    "continuous-sets",
    "mmspec_continuous.drafters.jacobi:ContinuousSets",
    "redraw continuous → chain window q sets",
    "A window whose first half the last pass decided; for causal-sets.",
    CSPD,
    words={"sets": "The drafter's window holds two sets of tokens, the first of which the last pass decided."},
)
TEMPERED = RuleSpec.row(
    "tempered",
    "mmspec_continuous.rules.tempered:Tempered",
    "continuous chain → redraw",
    "Test the last denoising step only, its exponent divided by tau.",
    CSPD,
    exactness="lossy",
)
CAUSAL_SETS = RuleSpec.row(
    "causal-sets",
    "mmspec_continuous.rules.causal_sets:CausalSets",
    "continuous sets → redraw",
    "Judge every token once; it stands whatever becomes of those before it.",
    CSPD,
    exactness="lossy",
)
DENOISE_AHEAD = RuleSpec.row(
    "denoise-ahead",
    "mmspec_continuous.rules.denoise_ahead:DenoiseAhead",
    "continuous chain → redraw",
    "Rejection; free draws take several denoising steps per call of the head.",
    REFLECTION,
    exactness="lossless",
)
DENOISING = AdapterSpec(
    name="speculative-denoising",
    factory="mmspec_continuous.denoising.enabled:Denoising",
    fits="mmspec_continuous.specs:denoises",
    k=4,
    exactness="lossless",
    summary="For diffusers pipelines: drafts denoising steps, coupled by reflection.",
    paper="https://arxiv.org/abs/2501.05370",
)
DRAFTERS = (CONTINUOUS_JACOBI, CONTINUOUS_DRAFT_MODEL, CONTINUOUS_SETS)
RULES = (TEMPERED, CAUSAL_SETS, DENOISE_AHEAD)
METHODS = (
    CONTINUOUS_JACOBI.method(
        "Jacobi windows of continuous tokens, coupled by reflection at every step.",
        name="reflection",
        rule="rejection",
        exactness="lossless",
        paper=REFLECTION,
    ),
    CONTINUOUS_DRAFT_MODEL.method(
        "A smaller model drafts tokens, coupled by reflection at every step.",
        name="draft-reflection",
        rule="rejection",
        exactness="lossless",
    ),
    MethodSpec(
        name="denoise-ahead",
        rule="denoise-ahead",
        exactness="lossless",
        summary="Plain tokens, each in fewer calls of the denoising head.",
        paper=REFLECTION,
    ),
    CONTINUOUS_DRAFT_MODEL.method(
        "Continuous speculative decoding as published: a tempered test, not exact.",
        name="cspd",
        rule="tempered",
        exactness="lossy",
        defaults={"prefill": 0.05, "tau": "released"},
        paper=CSPD,
    ),
    CONTINUOUS_SETS.method(
        "Sets of tokens, each drawn in one pass after drafts: another sampler.",
        name="causal-sets",
        rule="causal-sets",
        exactness="lossy",
    ),
)
COMPONENTS = (CONTINUOUS_AR, *DRAFTERS, *RULES, *METHODS, DENOISING)
PIPELINES = ("mmspec_continuous.mar_pipeline:MARPipeline",)


def denoises(model: object) -> bool:
    """True if an object has the parts of a diffusers pipeline that denoises, a network and a scheduler with steps;
    whether these have the distribution that is needed, the factory says.
    """
    scheduler = getattr(model, "scheduler", None)
    steps = hasattr(scheduler, "step") and hasattr(scheduler, "set_timesteps")
    return steps and any(getattr(model, network, None) is not None for network in ("unet", "transformer"))
