"""The verification core: one loop, one set of laws and rules. It knows no modality."""
