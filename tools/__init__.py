"""What made the shipped models and the figures of their cards. No wheel has it: run it from a clone."""
