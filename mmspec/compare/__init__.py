"""`mmspec verify`: a user's own script, run with and without mmspec, and compared output by output."""
