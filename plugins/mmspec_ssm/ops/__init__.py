"""Recurrent operations over trees, one file each; `mmspec.hosts.tree_op` says what such an operation is."""
