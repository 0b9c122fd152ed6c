"""Image generation over discrete codes: a first-party plugin of mmspec."""
