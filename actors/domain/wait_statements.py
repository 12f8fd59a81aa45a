"""What a statement comes to: which acts bind whom. What binds nothing comes to none.

Pure planning; reads the book, on the loop thread.
"""

from __future__ import annotations

from collections.abc import Callable

from abeyance.storage.errors import StorageError
from abeyance.storage.tables.fields import INSTANT_MS_MAX, REASON_CHARS_MAX
from abeyance.storage.tables.waits import Wait

from .ingress import clean_text, kept_name
from .overrides import EVERY
from .protocol import RecordWait
from .wait_book import ACCOUNT_TABLE, WaitAct, WaitBook, outlasts


def acts_of_statement(
    book: WaitBook,
    stated: RecordWait,
    binding: Wait | None,
    now_ms: int,
    act_id: Callable[[], str],
) -> list[WaitAct]:
    """The acts that a statement comes to: of the agent first, then of its credential.

    Args:
        binding: What binds the agent's own key.
    """
    deadline_ms = stated.deadline_ms
    if deadline_ms is not None and deadline_ms > INSTANT_MS_MAX:
        deadline_ms = None
    acts: list[WaitAct] = []

    def bind(
        key: tuple[str, str],
        until_ms: int | None,
        stands: Wait | None,
        table: str,
        window: str | None = None,
    ) -> None:
        """Have it bind a key, unless it is over, or what stands there lasts as long."""
        over = until_ms is not None and until_ms <= now_ms
        if over or (stands is not None and not outlasts(until_ms, stands.deadline_ms)):
            return
        set_ms = now_ms
        if table != ACCOUNT_TABLE:
            # Behind a release of what could not be read, which ends what was stated up to it.
            set_ms = max(now_ms, book.overrides.released_ms(*key) + 1)
        act = act_id()
        wait = Wait(
            deadline_ms=until_ms,
            reason=clean_text(stated.reason, REASON_CHARS_MAX),
            set_ms=set_ms,
            act=act,
            hold=act if stands is None else stands.hold or stands.act,
            since_ms=set_ms if stands is None else _since(stands),
            window=window,
            of_quota=stated.of_quota,
        )
        acts.append(WaitAct(key, wait, table))

    named = kept_name(stated.window)
    if stated.own:
        bind((stated.agent, stated.model), deadline_ms, binding, "waits", named)
    if stated.account is not None:
        key = (stated.account, stated.account_model)
        bind(key, deadline_ms, _wall(book, key), ACCOUNT_TABLE, named)
    if stated.account is not None and stated.account_ms is not None:
        key = (stated.account, EVERY)
        bind(key, stated.account_ms, _wall(book, key), ACCOUNT_TABLE)
    return acts


def _wall(book: WaitBook, key: tuple[str, str]) -> Wait | None:
    """What binds a credential's key; None also where that cannot be read."""
    try:
        return book.live(book.account_record(key))
    except StorageError:
        return None


def _since(wait: Wait) -> int:
    return wait.set_ms if wait.since_ms is None else wait.since_ms
