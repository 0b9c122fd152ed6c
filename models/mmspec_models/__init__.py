"""The models that ship with mmspec, and their cards: files only, which `mmspec.shipped` finds."""
