"""Training of drafters for a text model: data, what the target says of it, heads, and the files that are written."""
