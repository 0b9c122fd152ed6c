"""What proves the core: toys of all five modalities, exact oracles, statistics, mutants."""
