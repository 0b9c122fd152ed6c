"""The hooks of the ssm plugin. Imports no torch; the factories do."""

from collections.abc import Mapping

from mmspec.registry import answering, commanding, hookimpl, hookspec

OPS = {
    "causal_conv1d_fn": "mmspec_ssm.ops.conv:Convolution",
    "mamba2_chunk_scan": "mmspec_ssm.ops.ssd:Ssd",
    "mamba_selective_scan": "mmspec_ssm.ops.selective:SelectiveScan",
    "torch_chunk_gated_delta_rule": "mmspec_ssm.ops.delta:GatedDelta",
    "chunk_kimi_delta_attention": "mmspec_ssm.ops.delta:GatedDelta",
    "chunk_gla": "mmspec_ssm.ops.linear:GatedLinear",
}
"""Name of a function that mixers of transformers call → the tree operation that stands for it."""

mmspec_components = answering("mmspec_ssm.specs:COMPONENTS")
mmspec_commands = commanding("mmspec_ssm.commands:add")


@hookspec
@hookimpl
def mmspec_tree_ops() -> Mapping[str, str]:
    """Tree operations (`mmspec.hosts.tree_op`) as `module:Class`, by the names of the functions that mixers call."""
    return OPS


@hookimpl
def mmspec_target_for(model: object) -> str | None:
    if not hasattr(getattr(model, "config", None), "model_type") or not hasattr(model, "generate"):
        return None
    from mmspec_ssm import target

    return "recurrent" if target.fits(model) else None
