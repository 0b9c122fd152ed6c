"""The specs of drafters with trained heads, and of their methods; as in `mmspec_text.specs`. Imports no torch."""

from collections.abc import Mapping
from typing import Any

from mmspec.registry import DrafterSpec

TEXT = frozenset({"text"})
READS = "discrete hidden → chain tree q"
"""The words of a head that reads the target's hidden states."""
EAGLE = DrafterSpec.row(
    "eagle",
    "mmspec_text.drafters.eagle:Eagle",
    READS,
    "A trained head reads the target's hidden states: EAGLE to EAGLE-3.1, FSPAD.",
    "https://arxiv.org/abs/2503.01840",
    reads="mmspec_text.drafters.heads.eagle.family:is_head",
)
DFLASH = DrafterSpec.row(
    "dflash",
    "mmspec_text.drafters.dflash:DFlash",
    READS,
    "A trained head drafts a block in one pass: DFlash, DSpark, Domino, JetSpec.",
    "https://arxiv.org/abs/2602.06036",
    reads="mmspec_text.drafters.heads.dflash.family:is_head",
)
P_EAGLE = DrafterSpec.row(
    "p-eagle",
    "mmspec_text.drafters.p_eagle:PEagle",
    READS,
    "An EAGLE head trained to draft all units in one pass: P-EAGLE.",
    "https://arxiv.org/abs/2602.01469",
    reads="mmspec_text.drafters.heads.eagle.family:is_parallel",
)
FALCON = DrafterSpec.row(
    "falcon",
    "mmspec_text.drafters.falcon:Falcon",
    READS,
    "A trained head drafts blocks of units, one pass a block: Falcon.",
    "https://doi.org/10.1609/aaai.v39i22.34566",
    reads="mmspec_text.drafters.heads.eagle.family:is_falcon",
)
PPD = DrafterSpec.row(
    "ppd",
    "mmspec_text.drafters.ppd:PPD",
    "discrete tree → chain tree q",
    "Trained prompt tokens inside the target's own pass score the next draft: PPD.",
    "https://arxiv.org/abs/2405.18628",
)
PPD_MODEL = DrafterSpec.row(
    "ppd-model",
    "mmspec_text.drafters.ppd_model:PPDModel",
    "discrete → chain q",
    "A smaller language model, which drafts with prompt tokens of its own: PPD.",
    "https://arxiv.org/abs/2405.18628",
)
GATED_LORA = DrafterSpec.row(
    "gated-lora",
    "mmspec_text.drafters.gated_lora:GatedLora",
    "discrete tree → chain tree q",
    "Masks inside the target's own pass, a LoRA at them alone and a sampler draft.",
    "https://arxiv.org/abs/2507.11851",
)
MEDUSA = DrafterSpec.row(
    "medusa",
    "mmspec_text.drafters.medusa:Medusa",
    READS,
    "Trained heads, one for each depth, read the target's last state: Medusa.",
    "https://arxiv.org/abs/2401.10774",
    options="mmspec_text.drafters.heads.pathwise.drafter:PathOptions",
)
HYDRA = DrafterSpec.row(
    "hydra",
    "mmspec_text.drafters.hydra:Hydra",
    READS,
    "Trained heads read the drafted units before their own: Hydra, Hydra++.",
    "https://arxiv.org/abs/2402.05109",
    options="mmspec_text.drafters.heads.pathwise.drafter:PathOptions",
)
CLOVER = DrafterSpec.row(
    "clover",
    "mmspec_text.drafters.clover:Clover",
    READS,
    "A trained cell steps along the path by gated values of its units: Clover.",
    "https://arxiv.org/abs/2405.00263",
)
CLOVER_2 = DrafterSpec.row(
    "clover-2",
    "mmspec_text.drafters.clover_2:Clover2",
    READS,
    "A trained cell steps along the path by gated values of its units: Clover-2.",
    "https://arxiv.org/abs/2408.00264",
    options="mmspec_text.drafters.heads.pathwise.drafter:PathOptions",
)
MLP_SPECULATOR = DrafterSpec.row(
    "mlp-speculator",
    "mmspec_text.drafters.mlp_speculator:MlpSpeculator",
    READS,
    "A trained MLP folds every drafted unit into the target's last state.",
    "https://arxiv.org/abs/2404.19124",
    options="mmspec_text.drafters.heads.pathwise.drafter:PathOptions",
)
ARCTIC_LSTM = DrafterSpec.row(
    "arctic-lstm",
    "mmspec_text.drafters.mlp_speculator:ArcticLstm",
    READS,
    "A trained LSTM folds every drafted unit into the target's last state.",
    "https://github.com/snowflakedb/ArcticInference",
    options="mmspec_text.drafters.heads.pathwise.drafter:PathOptions",
)
MTP = DrafterSpec.row(
    "mtp",
    "mmspec_text.drafters.mtp:Mtp",
    READS,
    "The layers for multi-token prediction that the target's checkpoint holds.",
    "https://arxiv.org/abs/2412.19437",
)
GEMMA4_ASSISTANT = DrafterSpec.row(
    "gemma4-assistant",
    "mmspec_text.drafters.gemma4_assistant:Gemma4Assistant",
    READS,
    "A Gemma 4 assistant attends to the keys of its target, and has none of its own.",
    "https://ai.google.dev/gemma",
    reads="mmspec_text.drafters.gemma4_assistant:is_assistant",
)
HEAD_DRAFTERS = (
    EAGLE,
    DFLASH,
    P_EAGLE,
    FALCON,
    PPD,
    GATED_LORA,
    MEDUSA,
    HYDRA,
    CLOVER,
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
    PPD.method(
        "A few trained embeddings in the target's own pass draft; no model beside it.",
        needs=TEXT,
        defaults={
            "form": "sparse",
            "budget": 63,
        },  # the released tree_length, which its README raises to 105 on an A100
    ),
    GATED_LORA.method("Masks in the target's own pass draft, at which alone a LoRA changes it.", needs=TEXT),
    MEDUSA.method("Medusa's heads, one for each depth, draft a tree of their best combinations.", needs=TEXT),
    HYDRA.method("Hydra's heads, each of which reads the units before its own, draft a tree.", needs=TEXT),
    CLOVER.method("Clover's cell steps along the path behind one block, and drafts a tree of four.", needs=TEXT),
    CLOVER_2.method("Clover-2's cell steps along the path behind decoder layers, and drafts a tree.", needs=TEXT),
    MLP_SPECULATOR.method("An MLP speculator, as IBM and others publish them, drafts a tree or a chain.", needs=TEXT),
    ARCTIC_LSTM.method("An LSTM speculator of Arctic Inference drafts a tree or a chain.", needs=TEXT),
    MTP.method("The checkpoint's own multi-token layers draft a tree, or a chain.", needs=TEXT, **_TREES),
    GEMMA4_ASSISTANT.method("Google's assistant of a Gemma 4 drafts over the target's own keys.", needs=TEXT),
)
