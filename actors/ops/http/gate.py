"""Who may ask the HTTP API what. A browser that another site uses against it is turned away here.

Invariants:
    I1  A token is compared in constant time, and after ten wrong ones in a minute not at all: an
        address that guesses learns nothing more.
    I2  A request under a name that is not this API's, or from a page of another origin, does
        nothing and learns nothing, whatever token it carries.

Runs in: the loop thread.
"""

from __future__ import annotations

import hmac
import math
from collections import OrderedDict, deque
from collections.abc import Mapping
from typing import Final

import trio

from .options import HttpApi

FAILURES_MAX: Final = 10
WINDOW_S: Final = 60.0
ADDRESSES_MAX: Final = 1_024
"""How many addresses are remembered that sent a wrong token."""
HTTP_PORT: Final = 80
_HERE: Final = ("127.0.0.1", "localhost", "[::1]")


class HttpRefusedError(Exception):
    """A request that is turned away, as it is answered. Stays in this package."""

    def __init__(
        self, status: int, code: str, text: str, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(text)
        self.status = status
        self.code = code
        self.headers = dict(headers or {})


class Gate:
    """Of one API.

    Args:
        options: Its tokens and names.
        port: The one it listens on.
    """

    def __init__(self, options: HttpApi, port: int) -> None:
        self._admin = options.admin_token
        self._read = options.read_token
        own = f"[{options.host}]" if ":" in options.host else options.host
        reached = (*_HERE, own) if options.is_loopback else (own,)
        bare = reached if port == HTTP_PORT else ()  # Browsers leave the usual one out.
        self._names = frozenset({*(f"{name}:{port}" for name in reached), *bare, *options.names})
        self._failures: OrderedDict[str, deque[float]] = OrderedDict()

    def check(self, headers: Mapping[str, str], address: str, *, changes: bool) -> None:
        """Let a request pass, or turn it away.

        Args:
            headers: Of the request, found by their names in lower case.
            address: Where it comes from.
            changes: Whether it asks for a change.
        Raises:
            HttpRefusedError: As it is to be answered; nothing was done.
        """
        self._check_site(headers)
        if changes and self._admin is None:
            raise HttpRefusedError(
                403,
                "changes_disabled",
                "this host's HTTP API changes nothing; nothing was done; use the command line, or "
                "open the runtime with HttpApi(admin_token=...)",
            )
        if changes or self._read is not None:
            self._check_token(headers.get("authorization"), address, changes=changes)

    def check_name(self, headers: Mapping[str, str]) -> None:
        """Let a request for a file of the page pass: it holds nothing of the host.

        A link on another site's page may open it, in no frame; what the page itself then asks for
        is checked whole.

        Raises:
            HttpRefusedError: It is for a name that is not this API's.
        """
        name = headers.get("host", "").lower()
        if name not in self._names:
            raise HttpRefusedError(
                421,
                "unknown_host_name",
                f"this API is not reached as {name[:100]!r}; nothing was done; use one of "
                f"{', '.join(sorted(self._names))}, or name it in HttpApi(names=...)",
            )

    def _check_site(self, headers: Mapping[str, str]) -> None:
        self.check_name(headers)
        name = headers.get("host", "").lower()
        origin = headers.get("origin")
        site = headers.get("sec-fetch-site", "none").lower()
        foreign = origin is not None and origin.lower() not in (f"http://{name}", f"https://{name}")
        if foreign or site not in ("none", "same-origin"):
            raise HttpRefusedError(
                403,
                "foreign_origin",
                "the request comes from a page of another site; nothing was done; open the page of "
                "this API itself",
            )

    def _check_token(self, authorization: str | None, address: str, *, changes: bool) -> None:
        self._check_guesses(address)
        scheme, _, given = (authorization or "").partition(" ")
        given = given.strip() if scheme.lower() == "bearer" else ""
        is_admin = self._same(given, self._admin)
        is_reader = self._same(given, self._read)
        if is_admin or (is_reader and not changes):
            self._failures.pop(address, None)
            return
        if is_reader:
            raise HttpRefusedError(
                403,
                "admin_only",
                "this token may only look; nothing was done; send the admin token",
            )
        if given:
            self._note_guess(address)
        raise HttpRefusedError(
            401,
            "unauthorized",
            f"the request has {'a wrong' if given else 'no'} token; nothing was done; send it as "
            "`Authorization: Bearer TOKEN`",
            {"www-authenticate": 'Bearer realm="abeyance"'},
        )

    @staticmethod
    def _same(given: str, token: str | None) -> bool:
        # Without a token the comparison is made all the same, with what nobody can send.
        whole = "\0" if token is None else token
        return hmac.compare_digest(given.encode(), whole.encode())

    def _check_guesses(self, address: str) -> None:
        failures = self._failures.get(address)
        if failures is None:
            return
        now = trio.current_time()
        while failures and now - failures[0] >= WINDOW_S:
            failures.popleft()
        if len(failures) >= FAILURES_MAX:
            wait_s = max(1, math.ceil(WINDOW_S - (now - failures[0])))
            raise HttpRefusedError(
                429,
                "too_many_wrong_tokens",
                f"{FAILURES_MAX} wrong tokens came from this address; nothing was done; try again "
                f"in {wait_s} s",
                {"retry-after": str(wait_s)},
            )

    def _note_guess(self, address: str) -> None:
        self._failures.setdefault(address, deque(maxlen=FAILURES_MAX)).append(trio.current_time())
        self._failures.move_to_end(address)
        if len(self._failures) > ADDRESSES_MAX:
            self._failures.popitem(last=False)
