"""`mmspec view text`: a text while it is written, in the browser: which round wrote what, and every draft."""
