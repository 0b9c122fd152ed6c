"""Next-frame video and world models: a first-party plugin of mmspec."""
