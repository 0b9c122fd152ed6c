"""`mmspec verify`: somebody's own script, with and without mmspec, compared output by output."""
