"""What a release comes to: which acts end which waits, and what has no row of its own to end.

A wait is ended by a row in its place. What has none, or one that nothing can be put over, is ended
by an override: what cannot be read, and a quota's hold, which stands in its turn's row.

Pure planning; reads the book and the store, on the loop thread.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from abeyance.storage.errors import StorageError, UnreadableRecordError
from abeyance.storage.store import Store
from abeyance.storage.tables.waits import Override, Wait, WaitReleased

from .errors import unknown_agent
from .overrides import EVERY, OverrideKey
from .quota_hold import read_quota_hold
from .wait_book import ACCOUNT, ACCOUNT_TABLE, WaitAct, WaitBook


class Stamp(NamedTuple):
    """Who releases, when, and where the ids of the acts come from."""

    by: str
    at_ms: int
    act_id: Callable[[], str]


def acts_of_release(
    store: Store, book: WaitBook, agent: str, model: str | None, stamp: Stamp
) -> list[WaitAct]:
    """The acts that end an agent's waits, of one model or (None) of all."""
    listed = {wait.model for wait in book.listing(agent) if wait.model != EVERY}
    # What was stated while the rows could not be read is behind the stand-in, and not listed.
    listed |= {
        act.key[1] for act in book.pending if act.key[0] == agent and book.binds_pending(act)
    }
    acts = [
        WaitAct((agent, each), _released(stamp))
        for each in sorted(listed)
        if model in (None, each) and _takes_release(book, (agent, each))
    ]
    for key, fingerprint in _unrecorded(store, book, agent, model):
        override = Override(
            fingerprint=fingerprint, by=stamp.by, at_ms=stamp.at_ms, act=stamp.act_id()
        )
        acts.append(WaitAct(key, override, "overrides"))
    return acts


def acts_of_account_release(
    book: WaitBook, listed_as: str, model: str | None, stamp: Stamp
) -> list[WaitAct]:
    """The acts that end a credential's walls, of one model or (None, `*`) of all."""
    account = listed_as.removeprefix(ACCOUNT)
    damage = book.account_keys.damage(account)
    acts = [
        WaitAct((account, each), _released(stamp), ACCOUNT_TABLE)
        for each in sorted({wait.model for wait in book.listing(listed_as)})
        if model in (None, EVERY, each)
        and (damage is None or each != EVERY or _has_wall(book, account))
    ]
    if damage is not None and model in (None, EVERY):
        # No row can be put in the place of a key that cannot be read.
        override = Override(
            fingerprint=damage.fingerprint, by=stamp.by, at_ms=stamp.at_ms, act=stamp.act_id()
        )
        acts.append(WaitAct((listed_as, EVERY, "unreadable"), override, "overrides"))
    return acts


def was_stated_of(store: Store, book: WaitBook, name: str) -> bool:
    """Whether a wait is on record under a name, in force, over or released: so that to release one
    again, of an agent that is gone, is to release nothing, and no error."""
    if name.startswith(ACCOUNT):
        table, key = ACCOUNT_TABLE, name.removeprefix(ACCOUNT)
    else:
        table, key = "waits", name
    if any(act.key[0] in (key, name) for act in book.pending):
        return True
    try:
        return next(iter(store.scan(table, (key,))), None) is not None
    except StorageError:
        return False


def check_known(store: Store, book: WaitBook, name: str) -> None:
    """Refuse to look at an agent that is not there, where one that is and has nothing has nothing.

    Raises:
        UnknownAgentError: The store has no such agent, and no wait of one.
    """
    try:
        known = store.get("agents", (name,)) is not None
    except UnreadableRecordError:
        known = True
    if not (known or was_stated_of(store, book, name) or book.listing(name)):
        raise unknown_agent(name)


def _has_wall(book: WaitBook, account: str) -> bool:
    """Whether a wall of every model has a row, beside what a damaged key holds."""
    try:
        return isinstance(book.account_record((account, EVERY)), Wait)
    except StorageError:
        return True  # Its row is replaced.


def _released(stamp: Stamp) -> WaitReleased:
    return WaitReleased(by=stamp.by, at_ms=stamp.at_ms, act=stamp.act_id())


def _unrecorded(
    store: Store, book: WaitBook, agent: str, model: str | None
) -> list[tuple[OverrideKey, str]]:
    """What a release lifts that has no record of its own to release, and its fingerprint."""
    found: list[tuple[OverrideKey, str]] = []
    stand_in = book.unreadable.wide(agent)
    scope = model or EVERY
    if stand_in is not None and not book.unreadable.lifted(agent, scope, stand_in):
        found.append(((agent, scope, "unreadable"), stand_in.fingerprint))
    for key in book.unreadable.rows(agent):
        row = book.unreadable.unreplaceable(key)
        mine = row is not None and model in (None, key[1])
        if mine and row is not None and not book.unreadable.lifted(*key, row):
            found.append(((*key, "unreadable"), row.fingerprint))
    hold = read_quota_hold(store, agent)
    if (
        hold is not None
        and model in (None, hold.model)
        and book.overrides.quota(agent, hold.model) != hold.fingerprint
    ):
        found.append(((agent, hold.model, "quota"), hold.fingerprint))
    return found


def _takes_release(book: WaitBook, key: tuple[str, str]) -> bool:
    """Whether a release of this key goes into its row. Else an override stands for it, and what is
    pending of the key is ended in this process as well."""
    if book.unreadable.unreplaceable(key) is None:
        return True
    return any(book.binds_pending(act) for act in book.pending_of(key))
