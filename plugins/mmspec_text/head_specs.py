"""The specs of drafters with trained heads, and of their methods; as in `mmspec_text.specs`. Imports no torch."""

from collections.abc import Mapping
from typing import Any

from mmspec.registry import DrafterSpec

TEXT = frozenset({"text"})
READS: Mapping[str, Any] = {
    "needs": frozenset({"discrete", "hidden"}),
    "offers": frozenset({"chain", "tree", "q"}),
}
"""The needs and offers of a head that reads the target's hidden states."""
EAGLE = DrafterSpec(
    name="eagle",
    factory="mmspec_text.drafters.eagle:Eagle",
    **READS,
    summary="A trained head reads the target's hidden states: EAGLE, EAGLE-2, EAGLE-3, 3.1.",
    paper="https://arxiv.org/abs/2503.01840",
    options="mmspec_text.drafters.eagle:EagleOptions",
    reads="mmspec_text.drafters.heads.eagle.family:is_head",
)
DFLASH = DrafterSpec(
    name="dflash",
    factory="mmspec_text.drafters.dflash:DFlash",
    **READS,
    summary="A trained head drafts a block in one pass: DFlash, DSpark, Domino, JetSpec.",
    paper="https://arxiv.org/abs/2602.06036",
    options="mmspec_text.drafters.dflash:DFlashOptions",
    reads="mmspec_text.drafters.heads.dflash.family:is_head",
)
P_EAGLE = DrafterSpec(
    name="p-eagle",
    factory="mmspec_text.drafters.p_eagle:PEagle",
    **READS,
    summary="An EAGLE head trained to draft all units in one pass: P-EAGLE.",
    paper="https://arxiv.org/abs/2602.01469",
    options="mmspec_text.drafters.p_eagle:PEagleOptions",
    reads="mmspec_text.drafters.heads.eagle.family:is_parallel",
)
FALCON = DrafterSpec(
    name="falcon",
    factory="mmspec_text.drafters.falcon:Falcon",
    **READS,
    summary="A trained head drafts blocks of units, one pass a block: Falcon.",
    paper="https://doi.org/10.1609/aaai.v39i22.34566",
    options="mmspec_text.drafters.falcon:FalconOptions",
    reads="mmspec_text.drafters.heads.eagle.family:is_falcon",
)
PPD = DrafterSpec(
    name="ppd",
    factory="mmspec_text.drafters.ppd:PPD",
    needs=frozenset({"discrete", "tree"}),
    offers=frozenset({"chain", "tree", "q"}),
    summary="Trained prompt tokens inside the target's own pass score the next draft: PPD.",
    paper="https://arxiv.org/abs/2405.18628",
    options="mmspec_text.drafters.ppd:PPDOptions",
)
MEDUSA = DrafterSpec(
    name="medusa",
    factory="mmspec_text.drafters.medusa:Medusa",
    **READS,
    summary="Trained heads, one for each depth, read the target's last state: Medusa.",
    paper="https://arxiv.org/abs/2401.10774",
    options="mmspec_text.drafters.heads.pathwise.drafter:PathOptions",
)
HYDRA = DrafterSpec(
    name="hydra",
    factory="mmspec_text.drafters.hydra:Hydra",
    **READS,
    summary="Trained heads read the drafted units before their own: Hydra, Hydra++.",
    paper="https://arxiv.org/abs/2402.05109",
    options="mmspec_text.drafters.heads.pathwise.drafter:PathOptions",
)
CLOVER_2 = DrafterSpec(
    name="clover-2",
    factory="mmspec_text.drafters.clover_2:Clover2",
    **READS,
    summary="A trained cell steps along the path by gated values of its units: Clover-2.",
    paper="https://arxiv.org/abs/2408.00264",
    options="mmspec_text.drafters.heads.pathwise.drafter:PathOptions",
)
MLP_SPECULATOR = DrafterSpec(
    name="mlp-speculator",
    factory="mmspec_text.drafters.mlp_speculator:MlpSpeculator",
    **READS,
    summary="A trained MLP folds every drafted unit into the target's last state.",
    paper="https://arxiv.org/abs/2404.19124",
    options="mmspec_text.drafters.heads.pathwise.drafter:PathOptions",
)
ARCTIC_LSTM = DrafterSpec(
    name="arctic-lstm",
    factory="mmspec_text.drafters.mlp_speculator:ArcticLstm",
    **READS,
    summary="A trained LSTM folds every drafted unit into the target's last state.",
    paper="https://github.com/snowflakedb/ArcticInference",
    options="mmspec_text.drafters.heads.pathwise.drafter:PathOptions",
)
MTP = DrafterSpec(
    name="mtp",
    factory="mmspec_text.drafters.mtp:Mtp",
    **READS,
    summary="The layers for multi-token prediction that the target's checkpoint holds.",
    paper="https://arxiv.org/abs/2412.19437",
    options="mmspec_text.drafters.mtp:MtpOptions",
)
GEMMA4_ASSISTANT = DrafterSpec(
    name="gemma4-assistant",
    factory="mmspec_text.drafters.gemma4_assistant:Gemma4Assistant",
    **READS,
    summary="A Gemma 4 assistant attends to the keys of its target, and has none of its own.",
    paper="https://ai.google.dev/gemma",
    options="mmspec_text.drafters.gemma4_assistant:AssistantOptions",
    reads="mmspec_text.drafters.gemma4_assistant:is_assistant",
)
HEAD_DRAFTERS = (
    EAGLE,
    DFLASH,
    P_EAGLE,
    FALCON,
    PPD,
    MEDUSA,
    HYDRA,
    CLOVER_2,
    MLP_SPECULATOR,
    ARCTIC_LSTM,
    MTP,
    GEMMA4_ASSISTANT,
)
# On a CPU a node costs more: SmolLM2 in bfloat16, greedy, runs there at 1.06 times plain decoding's speed with 24 nodes
# of width 6, and at 1.23 times with 7 of width 3 (eight questions, one thread).
_TREES: Mapping[str, Any] = {"defaults": {"width": 3, "nodes": 7}, "on_accelerator": {"width": 6, "nodes": 24}}
HEAD_METHODS = (
    EAGLE.method("A trained head of the EAGLE family drafts EAGLE-2's tree, or a chain.", **_TREES),
    DFLASH.method("A trained head drafts a block at once from the target's features.", needs=TEXT),
    P_EAGLE.method("A trained head of the EAGLE family drafts all of its units at once.", needs=TEXT),
    FALCON.method("A trained head of the EAGLE family drafts blocks of units, one pass a block.", needs=TEXT),
    PPD.method("A few trained embeddings in the target's own pass draft; no model beside it.", needs=TEXT),
    MEDUSA.method("Medusa's heads, one for each depth, draft a tree of their best combinations.", needs=TEXT),
    HYDRA.method("Hydra's heads, each of which reads the units before its own, draft a tree.", needs=TEXT),
    CLOVER_2.method("Clover-2's cell steps along the path behind decoder layers, and drafts a tree.", needs=TEXT),
    MLP_SPECULATOR.method("An MLP speculator, as IBM and others publish them, drafts a tree or a chain.", needs=TEXT),
    ARCTIC_LSTM.method("An LSTM speculator of Arctic Inference drafts a tree or a chain.", needs=TEXT),
    MTP.method("The checkpoint's own multi-token layers draft a tree, or a chain.", needs=TEXT, **_TREES),
    GEMMA4_ASSISTANT.method("Google's assistant of a Gemma 4 drafts over the target's own keys.", needs=TEXT),
)
