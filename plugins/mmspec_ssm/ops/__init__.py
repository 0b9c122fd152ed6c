"""Recurrent operations over trees (`mmspec.hosts.tree_op`), one file each."""
