"""Multi-token prediction: layers beside a target's own, trained with it and stored in its checkpoint."""
