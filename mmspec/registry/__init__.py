"""Plugins, specs, matching and options. The registry knows nothing about decoding and imports no torch."""

from mmspec.registry.hookspecs import hookimpl, hookspec
from mmspec.registry.loading import add_file, answering, commanding, installed, load
from mmspec.registry.manager import Registry
from mmspec.registry.matching import Pairing, fitting, missing_words, pair, require
from mmspec.registry.plugin import Plugin, PluginError
from mmspec.registry.specs import (
    AdapterSpec,
    DefaultMethod,
    DrafterSpec,
    MethodSpec,
    PolicySpec,
    RuleSpec,
    Spec,
    TargetSpec,
)

__all__ = [
    "AdapterSpec",
    "DefaultMethod",
    "DrafterSpec",
    "MethodSpec",
    "Pairing",
    "Plugin",
    "PluginError",
    "PolicySpec",
    "Registry",
    "RuleSpec",
    "Spec",
    "TargetSpec",
    "add_file",
    "answering",
    "commanding",
    "fitting",
    "hookimpl",
    "hookspec",
    "installed",
    "load",
    "missing_words",
    "pair",
    "require",
]
