"""The target drafts for itself, without some of its layers: no second model, no second cache."""
