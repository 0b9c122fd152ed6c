"""Plugins, components, matching and options. It knows nothing about decoding and imports no torch."""

from mmspec.registry.component import DEFAULT_RULE, Component
from mmspec.registry.hookspecs import hookimpl, hookspec
from mmspec.registry.loading import add_file, installed, load
from mmspec.registry.manager import Registry
from mmspec.registry.matching import Pairing, fits, fitting, pair, require
from mmspec.registry.plugin import Plugin, PluginError

__all__ = [
    "DEFAULT_RULE",
    "Component",
    "Pairing",
    "Plugin",
    "PluginError",
    "Registry",
    "add_file",
    "fits",
    "fitting",
    "hookimpl",
    "hookspec",
    "installed",
    "load",
    "pair",
    "require",
]
