"""Drafts that are looked up in texts of the user's: a datastore, and its union with a model's tree."""
