"""The verification core: one loop, one set of distributions and rules. It knows no modality."""
