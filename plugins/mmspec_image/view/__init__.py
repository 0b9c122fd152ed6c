"""`mmspec view image`: pictures while they are drawn, in the browser, by plain decoding and by another method."""
