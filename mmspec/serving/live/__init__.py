"""Pages that show decoding while it happens: a server on loopback, a socket and a session for every open page."""
