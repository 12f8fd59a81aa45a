"""Abeyance: an actor runtime for processes that host LLM agents."""

if __name__ != "abeyance.actors":  # A second import under a bare name would make two of every class.
    raise ImportError("import abeyance.actors, not the folder 'actors' by its bare name")

from ._version import __version__

__all__ = ["__version__"]
