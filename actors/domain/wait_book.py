"""What binds which (agent, model), and until when: the durable rows with pending acts applied.

Invariants:
    I1  What binds is the key's row with its pending acts applied in order: a release ends what
        stood before it, a wait binds where it outlasts it. An act binds from the moment it is made.
    I2  A wait binds while its deadline is later than now; one without a deadline binds until it is
        released. Expiry writes nothing.
    I3  What cannot be read holds as far as it is unknown (`unreadable`), until it reads again or is
        released.

Read by anyone on the loop thread; written by the ledger actor only, but that a reading which finds
an episode over makes its overrides lapse.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from abeyance.actors.core.clock import Clock
from abeyance.storage.errors import StorageError, StoreClosedError, UnreadableRecordError
from abeyance.storage.store import Row, Store
from abeyance.storage.tables.fields import REASON_CHARS_MAX
from abeyance.storage.tables.waits import Override, Wait, WaitReleased

from .account_keys import AccountKeys
from .ingress import ACCOUNT_PREFIX
from .limits import RECHECK_MS as RECHECK_MS
from .overrides import EVERY, LAPSED, UNTIL_READ, Overrides
from .quota_hold import QuotaHold, read_quota_hold
from .unreadable import StandIn, Unreadable

ACCOUNT: Final = ACCOUNT_PREFIX
"""An account's waits are listed and released under this and its fingerprint, as an agent's are."""
ACCOUNT_TABLE: Final = "account_waits"
HoldCause: TypeAlias = Literal[
    "wait", "unreadable", "quota", "cooldown", "host", "account", "approval", "context"
]
ActRecord: TypeAlias = Wait | WaitReleased | Override


class ProviderWait(NamedTuple):
    """One wait in force."""

    agent: str
    model: str
    """`*` where recorded waits cannot be read and every model is held."""
    deadline_ms: int | None
    """Epoch milliseconds; None has no end of its own and is ended by a release."""
    reason: str
    set_ms: int
    window: str | None = None
    of_quota: bool = False
    """As in `Deferral`."""
    pending: bool = False
    """It binds in this process, and the store has not taken it yet: it is offered again, and a
    process that dies before it lands forgets it."""


class Deferral(NamedTuple):
    """Why a call may not be made now. No call was made."""

    agent: str
    model: str
    deadline_ms: int | None
    reason: str
    cause: HoldCause
    window: str | None = None
    """Of the account, where that is what is used up."""
    of_quota: bool = False
    """Whether that is an exhausted quota: no limit of so many calls a minute, and no pause."""


class WaitAct:
    """One statement or release on its way to storage: what becomes of one row of one table."""

    # `durable`: storage holds it, or something that outlasts it.

    __slots__ = ("durable", "key", "record", "table")

    def __init__(self, key: tuple[Any, ...], record: ActRecord, table: str = "waits") -> None:
        self.key = key
        self.record = record
        self.table = table
        self.durable = False


class WaitBook:
    """Waits as they bind in this process."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self.pending: list[WaitAct] = []
        """Acts made here and not known to be stored, in order."""
        self._by_key: dict[tuple[str, tuple[Any, ...]], list[WaitAct]] = {}
        """The same by table and key, so that an admission looks at no other key's."""
        self.overrides = Overrides(store)
        self.unreadable = Unreadable(store, clock, self.overrides)
        self.account_keys = AccountKeys(store, clock, self.overrides)
        self.episodes = self.unreadable.episodes
        self.unreadable.on_healed = self._lapse
        self.on_lapsed: Callable[[], None] | None = None
        """Rung where overrides lapsed, which is pending: the ledger offers it. Does not raise."""

    # -- acts, the ledger's --------------------------------------------------------------------

    def add(self, acts: Sequence[WaitAct]) -> None:
        """Have acts bind from now on, behind what is pending."""
        self.pending.extend(acts)
        for act in acts:
            self._by_key.setdefault((act.table, act.key), []).append(act)
            if isinstance(act.record, Override):
                agent, model, what = act.key
                self.overrides.note((agent, model, what), act.record)
                if what == "unreadable" and act.record.fingerprint != LAPSED:
                    self.episodes.end(agent, model)
            elif isinstance(act.record, WaitReleased) and act.table == "waits":
                # What is released need not be readable, and is told of again where it stays so.
                self.unreadable.mend(act.key)

    def pending_of(self, key: tuple[str, str]) -> Sequence[WaitAct]:
        """A key's pending acts, in order."""
        return self._by_key.get(("waits", key), ())

    def binds_pending(self, act: WaitAct) -> bool:
        """Whether a pending act is a wait in force that no act behind it released."""
        if act.table != "waits" or self.live(act.record) is None:
            return False
        acts = self._by_key[act.table, act.key]
        return not any(isinstance(each.record, WaitReleased) for each in acts[acts.index(act) :])

    def drop_durable(self) -> list[WaitAct]:
        """Take out the pending acts that are durable by now, and return them."""
        done = [act for act in self.pending if act.durable]
        if done:
            self.pending[:] = [act for act in self.pending if not act.durable]
            for place in {(act.table, act.key) for act in done}:
                left = [act for act in self._by_key[place] if not act.durable]
                if left:
                    self._by_key[place] = left
                else:
                    del self._by_key[place]
        return done

    def lapse_stale(self) -> None:
        """End what was released of anything that is read by now. Called once all keys were."""
        for (agent, model, _), override in list(self.overrides.standing()):
            if agent.startswith(ACCOUNT):
                if not self.account_keys.stands(agent, override.fingerprint):
                    self._lapse(override.fingerprint)
                continue
            self.unreadable.wide(agent)
            if model != EVERY:
                self.unreadable.read((agent, model))
            if not self.unreadable.stands(override.fingerprint):
                self._lapse(override.fingerprint)

    def _lapse(self, fingerprint: str) -> None:
        """End what was released of an episode that is over.

        Its waits stay released: the instant up to which they are is kept.
        """
        acts = []
        for key, override in self.overrides.standing():
            if override.fingerprint == fingerprint:
                over = Override(
                    fingerprint=LAPSED,
                    by=override.by,
                    at_ms=override.at_ms,
                    act=_over(override),
                )
                acts.append(WaitAct(key, over, "overrides"))
        if acts:
            self.add(acts)
            if self.on_lapsed is not None:
                self.on_lapsed()

    def forget(self, agent: str) -> None:
        """Read anew what is remembered of an agent: another process may have owned it."""
        self.unreadable.forget(agent)
        for act in self.pending:
            if isinstance(act.record, Override) and act.key[0] == agent:
                self.overrides.note(act.key, act.record)

    # -- what binds ----------------------------------------------------------------------------

    def deferral(self, agent: str, model: str | None, *, exempt: bool = False) -> Deferral | None:
        """Why a call to this key may not be made now, or None.

        Args:
            model: None for a call that names no model: what cannot be read holds it, whichever
                model's it is.
            exempt: Whether what cannot be read holds nothing.
        """
        if model is not None:
            self.unreadable.claim((agent, model))
        if not exempt:
            stand_in = self._wide(agent, model)
            if stand_in is None and model is None:
                stand_in = self._any_unreadable(agent)
            if stand_in is not None:
                shown = EVERY if model is None else model
                return Deferral(agent, shown, None, stand_in.reason, "unreadable")
        if model is None:
            return None
        wait = self.binding((agent, model))
        if isinstance(wait, StandIn):
            return None if exempt else Deferral(agent, model, None, wait.reason, "unreadable")
        if wait is None:
            return None
        return Deferral(
            agent, model, wait.deadline_ms, wait.reason, "wait", wait.window, wait.of_quota
        )

    def _wide(self, agent: str, model: str | None) -> StandIn | None:
        stand_in = self.unreadable.wide(agent)
        if stand_in is None or self.unreadable.lifted(agent, model or EVERY, stand_in):
            return None
        return stand_in

    def _any_unreadable(self, agent: str) -> StandIn | None:
        """What cannot be read of any of an agent's models."""
        for key, row in self._store.scan("waits", (agent,)):
            # Also where this reading could: the reading of one row may fail by itself.
            if isinstance(row, UnreadableRecordError) or [type(part) for part in key] == [str, str]:
                found = self.binding((agent, str(key[-1])))
                if isinstance(found, StandIn):
                    return found
        for scope in self.unreadable.rows(agent):
            if isinstance(found := self.binding(scope), StandIn):
                return found
        return None

    def binding(self, key: tuple[str, str]) -> Wait | StandIn | None:
        """The wait that binds a key, or None; a stand-in where that cannot be known."""
        acts = [act.record for act in self._by_key.get(("waits", key), ())]
        record: ActRecord | StandIn | None = None
        if any(isinstance(act, WaitReleased) for act in acts):
            # What a release ends need not be readable.
            while not isinstance(record, WaitReleased):
                record = acts.pop(0)
        else:
            record = self.stored(key)
        if isinstance(record, StandIn):
            return record
        for act in acts:
            record = apply(record, act)
        return self.live(record)

    def stored(self, key: tuple[str, str]) -> Wait | StandIn | None:
        """The wait that storage holds of a key, in force or ended; None where it was released; a
        stand-in where it cannot be read and nobody released it."""
        row = self.unreadable.read(key)
        if isinstance(row, StandIn):
            return None if self.unreadable.lifted(*key, row) else row
        return None if row is None else self._unreleased(key, row)

    def _unreleased(self, key: tuple[Any, ...], row: Row) -> Wait | None:
        """The wait in a row, unless it was released when it could not be read."""
        record = row.record
        if not isinstance(record, Wait) or len(key) != 2:
            return None
        return None if record.set_ms <= self.overrides.released_ms(*key) else record

    def last_act(self, key: tuple[str, str]) -> ActRecord | None:
        """What was said of a key last, in force or not; None where nothing was, or it cannot be
        read."""
        pending = self.pending_of(key)
        if pending:
            return pending[-1].record
        try:
            row = self._store.get("waits", key)
        except StorageError:
            return None
        return None if row is None else row.record

    def account_record(self, key: tuple[str, str]) -> ActRecord | None:
        """What stands for a credential's model, or `*`: its row with pending acts applied; None
        also for a row that may be taken for none.

        Raises:
            StorageError: It cannot be read.
        """
        self.account_keys.claim(key)
        acts = [act.record for act in self._by_key.get((ACCOUNT_TABLE, key), ())]
        record: ActRecord | None = None
        if not any(isinstance(act, WaitReleased) for act in acts):
            try:
                row = self._store.get(ACCOUNT_TABLE, key)
            except UnreadableRecordError as error:
                if not error.ignorable and not self.account_keys.is_strays(error):
                    raise
                row = None
            record = None if row is None else row.record
        for act in acts:
            record = apply(record, act)
        return record

    def quota_hold(self, agent: str) -> QuotaHold | None:
        """The quota that states no end and holds the agent's turn, as it is stored; None where none
        does, or it was released."""
        hold = read_quota_hold(self._store, agent)
        if hold is None or self.overrides.quota(agent, hold.model) == hold.fingerprint:
            return None
        return hold

    def account_models(self, account: str) -> list[str]:
        """What has a row of this credential, `*` for all its models, or one that cannot be read.

        Raises:
            StorageError: Nobody can tell.
        """
        keys = [key for key, _ in self._store.scan(ACCOUNT_TABLE, (account,))]
        return [str(key[1]) for key in keys if len(key) == 2]

    def _listed_accounts(self, account: str | None) -> list[ProviderWait]:
        keys = {act.key for act in self.pending if act.table == ACCOUNT_TABLE}
        try:
            keys.update(key for key, _ in self._store.scan(ACCOUNT_TABLE))
        except StoreClosedError:
            raise
        except StorageError as error:
            return [_unread_account(EVERY, EVERY, error, self._clock.now_ms())]
        shown = []
        for name in self.account_keys.accounts() if account is None else [account]:
            damage = self.account_keys.damage(name)
            if damage is not None:
                now_ms = self._clock.now_ms()
                shown.append(ProviderWait(f"{ACCOUNT}{name}", EVERY, None, damage.reason, now_ms))
        for key in sorted(key for key in keys if account in (None, key[0]) and len(key) == 2):
            try:
                wait = self.live(self.account_record((str(key[0]), str(key[1]))))
            except StoreClosedError:
                raise
            except StorageError as error:
                unread = _unread_account(str(key[0]), str(key[1]), error, self._clock.now_ms())
                shown.append(unread)
                continue
            if wait is not None:
                name, model = f"{ACCOUNT}{key[0]}", str(key[1])
                pending = self._is_pending(ACCOUNT_TABLE, key, wait)
                shown.append(listed(name, model, wait, pending=pending))
        return shown

    def listing(self, agent: str | None = None) -> tuple[ProviderWait, ...]:
        """The waits in force, of one agent or of all, by agent and model; first, as waits on `*`,
        what holds every model because it cannot be read; last, under `account:FINGERPRINT`, those
        of credentials."""
        if agent is not None and agent.startswith(ACCOUNT):
            return tuple(self._listed_accounts(agent.removeprefix(ACCOUNT)))
        found: dict[tuple[str, str], Wait] = {}
        unread: list[ProviderWait] = []
        try:
            for key, row in self._store.scan("waits", () if agent is None else (agent,)):
                if isinstance(row, Exception) or ("waits", key) in self._by_key:
                    self._list(found, key)
                elif (wait := self.live(self._unreleased(key, row))) is not None:
                    found[key] = wait  # type: ignore[index]
        except StoreClosedError:
            raise
        except StorageError as error:
            if (worse := self.unreadable.table_error()) is not None:
                self.unreadable.note_table(worse)
            elif agent is None:
                unread.append(_unread(error, self._clock.now_ms()))
        for key in self.unreadable.rows(agent):
            self._list(found, key)
        for act in self.pending:
            if act.table == "waits" and agent in (None, act.key[0]):
                self._list(found, act.key)
        return (
            *(self._listed_wide(agent) or unread),
            *(
                listed(*key, found[key], pending=self._is_pending("waits", key, found[key]))
                for key in sorted(found)
            ),
            *(self._listed_accounts(None) if agent is None else ()),
        )

    def _is_pending(self, table: str, key: tuple[Any, ...], wait: Wait) -> bool:
        acts = self._by_key.get((table, key), ())
        return any(act.record is wait and not act.durable for act in acts)

    def _list(self, found: dict[tuple[str, str], Wait], key: tuple[Any, ...]) -> None:
        if [type(part) for part in key] != [str, str]:
            return  # A damaged key; `_listed_wide` shows it.
        agent, model = key
        wait = self.binding((agent, model))
        if isinstance(wait, StandIn):
            if wait.scope != (agent, model):
                return
            wait = _shown(wait)
        if wait is None:
            found.pop((agent, model), None)
        else:
            found[agent, model] = wait

    def _listed_wide(self, agent: str | None) -> list[ProviderWait]:
        if agent is None:
            standing = self.unreadable.all_wide()
        else:
            stand_in = self.unreadable.wide(agent)
            standing = [] if stand_in is None else [stand_in]
        shown = []
        for stand_in in standing:
            name = stand_in.scope[0] if agent is None else agent
            if not self.unreadable.lifted(name, EVERY, stand_in):
                wait = _shown(stand_in)
                shown.append(ProviderWait(name, EVERY, None, wait.reason, wait.set_ms))
        return shown

    def live(self, record: ActRecord | None) -> Wait | None:
        """The wait that a record is, where it is in force."""
        if not isinstance(record, Wait):
            return None
        over = record.deadline_ms is not None and record.deadline_ms <= self._clock.now_ms()
        return None if over else record


def listed(agent: str, model: str, wait: Wait, *, pending: bool = False) -> ProviderWait:
    """A wait as it is listed, under the name it is listed by."""
    ends_ms, window, of_quota = wait.deadline_ms, wait.window, wait.of_quota
    return ProviderWait(agent, model, ends_ms, wait.reason, wait.set_ms, window, of_quota, pending)


def _unread(error: StorageError, now_ms: int) -> ProviderWait:
    reason = f"some of the recorded waits cannot be read: {error}"[:REASON_CHARS_MAX]
    return ProviderWait(EVERY, EVERY, None, reason, now_ms)


def _unread_account(account: str, model: str, error: StorageError, now_ms: int) -> ProviderWait:
    reason = f"the account's wait cannot be read; {UNTIL_READ}: {error}"[:REASON_CHARS_MAX]
    return ProviderWait(f"{ACCOUNT}{account}", model, None, reason, now_ms)


def _shown(stand_in: StandIn) -> Wait:
    return Wait(deadline_ms=None, reason=stand_in.reason, set_ms=stand_in.read_ms, act="unreadable")


def _over(override: Override) -> str:
    return f"{override.act[:120]}-over"


def apply(record: ActRecord | None, act: ActRecord) -> ActRecord | None:
    """What a key's record is after an act. Applying the same acts twice changes nothing."""
    if isinstance(act, Override) and act.fingerprint == LAPSED:
        # A newer release, another process's may be, is of an episode of its own.
        is_of_it = isinstance(record, Override) and _over(record) == act.act
        return act if is_of_it else record
    if isinstance(act, Wait) and isinstance(record, Wait):
        return act if outlasts(act.deadline_ms, record.deadline_ms) else record
    return act


def outlasts(deadline_ms: int | None, other_ms: int | None) -> bool:
    """Whether a deadline is strictly later than another; None is later than every instant."""
    if other_ms is None:
        return False
    return deadline_ms is None or deadline_ms > other_ms
