"""Errors of the actor kernel, sorted by what is still true when one is raised.

Each has a stable `code`, attributes, and a text of the form: what failed; what is still true; what
to do. All survive pickling.
"""

from __future__ import annotations

from typing import Any, ClassVar


class AbeyanceError(Exception):
    """Base of every error that this distribution raises outside `abeyance.storage`.

    Keyword arguments become attributes. `str()` is the text a person reads.
    """

    code: ClassVar[str] = "abeyance"

    def __init__(self, text: str, /, **attributes: Any) -> None:
        super().__init__(text)
        self.__dict__.update(attributes)

    def __reduce__(self) -> tuple[Any, ...]:
        return (_rebuild, (type(self), self.args, self.__dict__.copy()))


def _rebuild(kind: type[AbeyanceError], args: tuple[Any, ...], state: dict[str, Any]) -> AbeyanceError:
    error = kind.__new__(kind)
    Exception.__init__(error, *args)
    error.__dict__.update(state)
    return error
