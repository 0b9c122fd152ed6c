"""What plugins of language models share: pipelines, demonstrations, benchmarks, and texts of cards."""
