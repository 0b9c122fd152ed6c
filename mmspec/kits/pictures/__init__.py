"""The common parts of pipelines, targets and benchmarks over pictures: prompts, guidance, the call loop, callbacks.

There are two ways to draw. A *raster* transformer has no words: it reads a condition, then cells of a picture alone,
row by row from the top left (LlamaGen, continuous tokens, the frames of a token world); `raster` makes its passes. A
*written* picture is a part of a text: a language model writes the ids of cells behind the words, with ids of its own at
the ends of rows and of the picture (Emu3, the Chameleon family, GLM-Image); its target is the target of texts, and
`grid_spec` says what every unit is.
"""
