"""The daemon's configuration: the table of options, a reader that names file and line of what is wrong, and what the table is
written out as.

``option`` is a row of the table and the checks of values, ``principals`` users and groups, ``options`` the table. ``reader``
makes a ``Config`` of TOML, ``render`` makes texts of the table, ``source`` knows the lines of a TOML file.
"""

from __future__ import annotations

from .option import MIB, NS_PER_MS, Option, loopback
from .options import (
    ACCESS_OPTIONS,
    LINK_OPTIONS,
    OPTIONS,
    SECTIONS,
    ClusterOptions,
    Config,
    DirectoryOptions,
    LinkOptions,
    LogOptions,
    StationOptions,
)
from .programs import AccessOptions, ClientOptions
from .reader import CONFIG_ENV, CONFIG_PATH, find, load, parse
from .render import LIVE, example, markdown, sentence, toml_value
from .source import FILE_BYTES_MAX, ConfigError, Problem

__all__ = [
    "ACCESS_OPTIONS",
    "CONFIG_ENV",
    "CONFIG_PATH",
    "FILE_BYTES_MAX",
    "LINK_OPTIONS",
    "LIVE",
    "MIB",
    "NS_PER_MS",
    "OPTIONS",
    "SECTIONS",
    "AccessOptions",
    "ClientOptions",
    "ClusterOptions",
    "Config",
    "ConfigError",
    "DirectoryOptions",
    "LinkOptions",
    "LogOptions",
    "Option",
    "Problem",
    "StationOptions",
    "example",
    "find",
    "load",
    "loopback",
    "markdown",
    "parse",
    "sentence",
    "toml_value",
]
