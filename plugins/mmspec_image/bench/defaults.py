"""How much `mmspec bench image` does; apart, since the command line reads it before anything heavy is imported."""

MODEL = "mmspec/emoji"
PROMPTS = 8
REPEATS = 4
WINDOW = 12
BATCH = 8
