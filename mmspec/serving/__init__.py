"""`mmspec serve`: the OpenAI endpoint of `transformers serve`, with models that speculate. Importing it loads nothing.

The routes, the handlers and the queue of a model are transformers'. What is here is what they lack: the model with its
decoder, a seed of every request's own, limits, errors that say what was wrong, and an end to requests whose client has
gone.
"""
