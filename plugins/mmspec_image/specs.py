"""The specs of the image plugin; its classes read their facts here. Imports no torch."""

from collections.abc import Mapping
from typing import Any

from mmspec.kits.text.manifest import DEFAULT_METHODS
from mmspec.registry import DefaultMethod, DrafterSpec, RuleSpec, TargetSpec

LLAMAGEN = TargetSpec(
    name="llamagen",
    factory="mmspec_image.targets.llamagen:LlamaGenTarget",
    offers=frozenset({"discrete", "tree", "window", "grow", "truncate", "codebook", "hidden"}),
    summary="LlamaGen: VQ codes of a picture in raster order, with guidance.",
    paper="https://arxiv.org/abs/2406.06525",
    pipeline="mmspec_image.pipeline:TextToImagePipeline",
    default_methods=(DefaultMethod(method="gs-sjd", k=16),),
)
JANUS = TargetSpec(
    name="janus",
    factory="mmspec_image.targets.janus:JanusTarget",
    offers=frozenset({"discrete", "tree", "window", "grow", "truncate", "codebook"}),
    summary="Janus of transformers, for pictures: codes in raster order, with guidance.",
    paper="https://arxiv.org/abs/2501.17811",
    pipeline="mmspec_image.janus_pipeline:JanusPipeline",
    architectures=frozenset({"JanusForConditionalGeneration", "JanusForImages"}),
    default_methods=(DefaultMethod(method="gs-sjd", k=16),),
)
GLM_IMAGE = TargetSpec(
    name="glm-image",
    factory="mmspec_image.targets.glm_image:GlmImageTarget",
    offers=frozenset({"discrete", "tree", "text", "window", "grow", "truncate", "codebook"}),
    summary="GLM-Image of transformers: codes of a preview, then of the picture.",
    paper="https://huggingface.co/zai-org/GLM-Image",
    architectures=frozenset({"GlmImageForConditionalGeneration"}),
    default_methods=(DefaultMethod(method="draft-model", when="model"), DefaultMethod(method="gs-sjd", k=16)),
)
EMU3 = TargetSpec(
    name="emu3",
    factory="mmspec_image.targets.written:Emu3Target",
    offers=frozenset({"discrete", "tree", "text", "window", "grow", "truncate", "hidden", "codebook"}),
    summary="Emu3 of transformers: text, and codes of a picture with row ends, with guidance.",
    paper="https://arxiv.org/abs/2409.18869",
    pipeline="mmspec_image.emu3_pipeline:Emu3Pipeline",
    architectures=frozenset({"Emu3ForConditionalGeneration"}),
    default_methods=(
        DefaultMethod(method="gs-sjd", k=16, when="pipeline", why="gs-sjd, because a pipeline of emu3 draws pictures"),
        *DEFAULT_METHODS,
    ),
)
CHAMELEON = TargetSpec(
    name="chameleon",
    factory="mmspec_image.targets.written:ChameleonTarget",
    offers=EMU3.offers,
    summary="Chameleon, Anole, Lumina-mGPT of transformers, for pictures, with guidance.",
    paper="https://arxiv.org/abs/2405.09818",
    pipeline="mmspec_image.chameleon_pipeline:ChameleonPipeline",
    architectures=frozenset({"ChameleonForConditionalGeneration", "ChameleonForImages"}),
    default_methods=GLM_IMAGE.default_methods,
)
GRID_LANGUAGE = TargetSpec(
    name="grid-language",
    factory="mmspec_image.targets.written:GridLanguageTarget",
    offers=EMU3.offers,
    summary="Liquid, SimpleAR, Emu3.5, Lumina-mGPT 2: a language model, one grid of codes.",
    paper="https://arxiv.org/abs/2412.04332",
    pipeline="mmspec_image.grid_language_pipeline:GridLanguagePipeline",
    architectures=frozenset({"LiquidForImages", "SimpleARForImages", "Emu35ForImages", "Lumina2ForImages"}),
    default_methods=GLM_IMAGE.default_methods,
)
OWN_PICTURES = TargetSpec(
    name="own-pictures",
    factory="mmspec_image.targets.written:OwnPicturesTarget",
    offers=EMU3.offers,
    summary="A language model over the codes of your VQ: docs/start/own_picture_model.md",
    default_methods=GLM_IMAGE.default_methods,
    asks={
        "vq": "the VQ whose codes the model writes, or its table of entries [code, width]",
        "codes": "the model's ids of these codes, in the order of the entries",
    },
)
JACOBI = DrafterSpec.row(
    "jacobi",
    "mmspec_image.drafters.jacobi:ImageJacobi",
    "redraw discrete → chain window q",
    "The target's own last pass over a window of codes; no model, no training.",
    "https://arxiv.org/abs/2410.01699",
)
SJD_PAC = DrafterSpec.row(
    "sjd-pac",
    "mmspec_image.drafters.sjd_pac:SjdPac",
    "redraw discrete → tree window q",
    "A window of codes with siblings at its front; no model, no training.",
    "https://arxiv.org/abs/2603.18599",
)
RECURSIVE_COUPLING = RuleSpec.row(
    "recursive-coupling",
    "mmspec_image.rules.recursive_coupling:RecursiveCoupling",
    "discrete → redraw",
    "Try sampled siblings in turn at every node at once; every node has a redraw.",
    "https://arxiv.org/abs/2603.18599",
    exactness="lossless",
)
GROUPED = RuleSpec.row(
    "grouped",
    "mmspec_image.rules.grouped:Grouped",
    "discrete chain codebook → redraw",
    "Accept a draft for the mass of codes next to it in the order of p.",
    "https://arxiv.org/abs/2508.07747",
    exactness="lossy",
)
RELAXED = RuleSpec.row(
    "relaxed",
    "mmspec_image.rules.relaxed:Relaxed",
    "discrete codebook → redraw rerank",
    "Accept a draft for the mass of codes that look like it.",
    "https://arxiv.org/abs/2410.03355",
    exactness="lossy",
)
# The released scripts of SJD for Lumina-mGPT and Emu3, which GSD's repeats; for LlamaGen SJD's has init=left.
_RELEASED: Mapping[str, Any] = {"k": 16, "defaults": {"redraw": "independent", "init": "random"}}
METHODS = (
    JACOBI.method(
        "Jacobi windows with shared noise: the plain picture for that seed, faster.",
        name="gs-sjd",
        needs={"codebook"},
        paper="https://arxiv.org/abs/2510.24211",
    ),
    JACOBI.method(
        "Jacobi windows, redrawn by maximal coupling.",
        name="mc-sjd",
        rule="rejection",
        needs={"codebook"},
        exactness="lossless",
        paper="https://arxiv.org/abs/2510.24211",
    ),
    JACOBI.method(
        "Speculative Jacobi decoding as first published: windows drawn anew.",
        name="sjd",
        rule="rejection",
        needs={"codebook"},
        exactness="lossless",
        **_RELEASED,
    ),
    SJD_PAC.method(
        "Jacobi windows with siblings at the front, redrawn by recursive rejection.",
        rule="recursive-coupling",
        needs={"codebook"},
        exactness="lossless",
    ),
    SJD_PAC.method(
        "sjd-pac with shared noise: the plain picture for that seed, faster.", name="gs-sjd-pac", needs={"codebook"}
    ),
    JACOBI.method(
        "Jacobi windows, accepted by groups of codes.",
        name="gsd",
        rule="grouped",
        exactness="lossy",
        **_RELEASED,
        paper="https://arxiv.org/abs/2508.07747",
    ),
    JACOBI.method(
        "Jacobi windows, accepted for codes that look alike.",
        name="lantern",
        rule="relaxed",
        exactness="lossy",
        paper="https://arxiv.org/abs/2410.03355",
    ),
)
TARGETS = (LLAMAGEN, JANUS, GLM_IMAGE, EMU3, CHAMELEON, GRID_LANGUAGE, OWN_PICTURES)
COMPONENTS = (*TARGETS, JACOBI, SJD_PAC, RECURSIVE_COUPLING, GROUPED, RELAXED, *METHODS)
