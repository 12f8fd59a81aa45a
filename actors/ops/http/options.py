"""What a host says of its HTTP API: where it listens, and who may change something.

Pure.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from abeyance.actors.domain.errors import InvalidSpecError

TOKEN_CHARS_MIN: Final = 16
TOKEN_CHARS_MAX: Final = 256
NAMES_MAX: Final = 32

_TOKEN = re.compile(r"[A-Za-z0-9._~+/=-]+")
_NAME = re.compile(r"[a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?(?::[0-9]{1,5})?")


@dataclass(frozen=True, slots=True)
class HttpApi:
    """The HTTP API of a host: `open_runtime(..., http=HttpApi(admin_token=...))`.

    Attributes:
        host: The address to listen on. One that others can reach needs a `read_token`.
        port: 0 takes a free one; `runtime.http_url` says which.
        admin_token: Who sends it (`Authorization: Bearer ...`) may change something; None: nobody
            may. 16 to 256 letters, digits and `._~+/=-`; not recorded and not shown anywhere.
        read_token: Who sends it, or the admin token, may look; None: whoever reaches the port may.
        names: Further names by which the API is reached, as a browser writes them (`box.lan:8321`),
            at most 32. A request for any other name is refused: it is how a page of another site
            would come in.
    Raises:
        InvalidSpecError: Names the field that is malformed, without a token's value.
    """

    host: str = "127.0.0.1"
    port: int = 8321
    admin_token: str | None = field(default=None, repr=False)
    read_token: str | None = field(default=None, repr=False)
    names: Sequence[str] = ()

    def __post_init__(self) -> None:
        _check_host(self.host)
        port = self.port
        if not isinstance(port, int) or isinstance(port, bool) or not 0 <= port <= 65_535:
            raise InvalidSpecError("port", "must be a whole number from 0 to 65535")
        for name in ("admin_token", "read_token"):
            _check_token(name, getattr(self, name))
        if self.admin_token is not None and self.admin_token == self.read_token:
            raise InvalidSpecError("read_token", "must be another one than the admin token")
        if not self.is_loopback and self.read_token is None:
            raise InvalidSpecError(
                "read_token", f"is needed: {self.host} can be reached from other machines"
            )
        _check_names(self.names)

    @property
    def is_loopback(self) -> bool:
        return ipaddress.ip_address(self.host).is_loopback


def check_http(options: object) -> HttpApi:
    """Refuse what is no description of an API. One that is, was checked as it was made.

    Raises:
        InvalidSpecError: It is none.
    """
    if not isinstance(options, HttpApi):
        raise InvalidSpecError("http", "must be an HttpApi, or None")
    return options


def _check_host(host: object) -> None:
    problem = "must be an address, such as 127.0.0.1 or ::1"
    # A number would be read as one.
    if not isinstance(host, str):
        raise InvalidSpecError("host", problem)
    try:
        ipaddress.ip_address(host)
    except ValueError:
        raise InvalidSpecError("host", problem) from None


def _check_token(name: str, token: object) -> None:
    if token is None:
        return
    sound = (
        isinstance(token, str)
        and TOKEN_CHARS_MIN <= len(token) <= TOKEN_CHARS_MAX
        and _TOKEN.fullmatch(token)
    )
    if not sound:
        raise InvalidSpecError(
            name,
            f"must be {TOKEN_CHARS_MIN} to {TOKEN_CHARS_MAX} letters, digits and ._~+/=-; "
            'python3 -c "import secrets; print(secrets.token_urlsafe(32))" makes one',
        )


def _check_names(names: object) -> None:
    if isinstance(names, str) or not isinstance(names, Sequence) or len(names) > NAMES_MAX:
        raise InvalidSpecError("names", f"must be a sequence of at most {NAMES_MAX} names")
    for place, name in enumerate(names):
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise InvalidSpecError(
                f"names[{place}]", "must be a name as a browser sends it: `box.lan:8321`"
            )
