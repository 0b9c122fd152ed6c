"""Our drafters in other people's engines. Nothing here imports an engine."""
