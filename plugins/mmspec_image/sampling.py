"""The settings of each model's authors, in the programs of their release: what a call uses where it does not say.

`docs/models/README.md` shows this table.
"""

from mmspec.kits.pictures.arguments import Sampling

AUTHORS = {
    "LlamaGen, classes": Sampling(guidance_scale=4.0, top_k=2000),
    "LlamaGen, captions": Sampling(guidance_scale=7.5, top_k=1000),
    "Janus": Sampling(guidance_scale=5.0),
    "Emu3": Sampling(guidance_scale=3.0, top_k=2048),
    "Chameleon, Anole": Sampling(guidance_scale=3.0, temperature=0.7, top_p=0.9),
    "Lumina-mGPT": Sampling(guidance_scale=4.0, top_k=2000),
    "Liquid": Sampling(guidance_scale=7.0, temperature=0.99, top_k=4096, top_p=0.96),
    "SimpleAR": Sampling(guidance_scale=6.0, top_k=64000),
    "Emu3.5": Sampling(guidance_scale=5.0, top_k=5120),
    "Lumina-mGPT 2.0": Sampling(guidance_scale=4.0, top_k=4096),
}
