"""State-space and hybrid language models: a first-party plugin of mmspec."""
