"""Autoregressive models over continuous tokens: a first-party plugin of mmspec that offers nothing yet."""
