"""What pipelines, targets and recipes over pictures share: prompts, guidance, the call loop, callbacks, quality."""
