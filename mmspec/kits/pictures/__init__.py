"""What pipelines, targets and benchmarks over pictures share: prompts, guidance, the call loop, callbacks."""
