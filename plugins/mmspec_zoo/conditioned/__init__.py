"""Target and drafter read different prompts."""
