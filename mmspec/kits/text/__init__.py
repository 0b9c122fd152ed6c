"""Language models: corpora, held-out text, recipes, the pipeline, the benchmark."""
