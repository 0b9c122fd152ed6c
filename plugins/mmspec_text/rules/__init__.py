"""Rules of the text plugin. All of them are lossy; the exact ones are the core's."""
