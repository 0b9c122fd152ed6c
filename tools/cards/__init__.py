"""Model cards and the numbers of documents, rendered from what was measured (`python -m tools.cards`)."""
