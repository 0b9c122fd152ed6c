"""How much a benchmark of language models does; apart, since the command line reads it before anything heavy comes."""

PROMPTS = 4
NEW = 96
REPEATS = 5
BATCH = 8

QUICK_PROMPTS = 1
QUICK_NEW = 24
QUICK_REPEATS = 3
