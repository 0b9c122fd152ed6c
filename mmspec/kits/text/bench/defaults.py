"""The default sizes of a benchmark of language models, in a file that the command line can import quickly."""

PROMPTS = 4
NEW = 96
REPEATS = 5
BATCH = 8

QUICK_PROMPTS = 1
QUICK_NEW = 24
QUICK_REPEATS = 3
