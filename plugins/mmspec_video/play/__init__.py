"""`mmspec play`: walk through a world in the browser, by plain decoding and by guessing ahead, side by side."""
