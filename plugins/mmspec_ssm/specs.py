"""The specs of the ssm plugin; its classes read their facts here. Imports no torch."""

from mmspec.hosts import offers
from mmspec.kits.text.manifest import DEFAULT_METHODS
from mmspec.registry import DrafterSpec, TargetSpec

RECURRENT = TargetSpec(
    name="recurrent",
    factory="mmspec_ssm.target:RecurrentTarget",
    offers=offers.RECURRENT,
    summary="A decoder of transformers with recurrent layers, alone or beside attention.",
    paper="https://arxiv.org/abs/2405.21060",
    pipeline="mmspec.kits.text.pipeline:TextPipeline",
    default_methods=DEFAULT_METHODS,
)
STREE = DrafterSpec.row(
    "stree",
    "mmspec_ssm.drafters.stree:Stree",
    "→ tree q",
    "A smaller model's static tree, as large as pays on this machine; or a chain.",
    "https://arxiv.org/abs/2505.14969",
)
METHODS = (
    STREE.method("A static tree of hardware-aware size by a smaller model, for any text target.", needs={"text"}),
)
COMPONENTS = (RECURRENT, STREE, *METHODS)
