"""Parts that modality plugins share and the core does not know."""
