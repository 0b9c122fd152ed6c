"""Text language models: the first-party text plugin of mmspec."""
