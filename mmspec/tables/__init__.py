"""Tables of prompts computed row by row into a folder, on one machine or on a cluster: `mmspec run`."""
