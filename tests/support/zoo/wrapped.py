"""Models made for pictures or sound that `AutoModelForCausalLM` loads, here on text alone."""

from tests.support.zoo.recipe import COMMON, WINDOW, Recipe

VISION = dict(
    hidden_size=32, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2, image_size=16, patch_size=8
)
WITHOUT_WIDTH = {name: value for name, value in COMMON.items() if name != "head_dim"}
LLAMA4 = dict(num_local_experts=2, attention_chunk_size=WINDOW, intermediate_size_mlp=96)

WRAPPED = {
    "emu3": Recipe("emu3", "text-of-multimodal", dict(text_config=dict(COMMON)), gain=7.0),
    "llama4": Recipe("llama4", "text-of-multimodal", dict(text_config=dict(COMMON, **LLAMA4)), gain=7.0),
    "mllama": Recipe("mllama", "text-of-multimodal", dict(text_config=dict(COMMON, cross_attention_layers=[1]))),
    "fuyu": Recipe(
        "fuyu", "text-of-multimodal", dict(text_config=dict(WITHOUT_WIDTH, model_type="persimmon")), gain=5.0
    ),
    "got_ocr2": Recipe(
        "got_ocr2",
        "text-of-multimodal",
        dict(
            text_config=dict(COMMON, model_type="qwen2"),
            vision_config=dict(
                hidden_size=32,
                output_channels=16,
                num_hidden_layers=1,
                num_attention_heads=2,
                image_size=32,
                patch_size=8,
                mlp_dim=32,
                window_size=2,
                global_attn_indexes=[0],
            ),
        ),
    ),
    "phi4_multimodal": Recipe(
        "phi4_multimodal",
        "text-of-multimodal",
        dict(
            vision_config=dict(VISION, crop_size=16),
            audio_config=dict(
                hidden_size=32, intermediate_size=32, num_blocks=1, num_attention_heads=2, nemo_conv_channels=32
            ),
        ),
    ),
    "moshi": Recipe("moshi", "text-of-multimodal", dict(head_dim=16, ffn_dim=96)),
}
"""Name → recipe."""
