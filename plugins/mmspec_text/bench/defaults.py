"""How much `mmspec bench text` does; apart, since the command line reads it before anything heavy is imported."""

PROMPTS = 4
NEW = 96
REPEATS = 5
BATCH = 8
