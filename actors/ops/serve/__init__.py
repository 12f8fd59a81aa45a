"""A host out of a file: agents that TOML declares, asked by lines of standard input.

`config` reads the file, `lines` says who a line is for, `host` runs it.
"""

from .config import ServeConfig, read_config
from .host import serve

__all__ = ["ServeConfig", "read_config", "serve"]
