"""The mailbox against a model of lists: random sends, stashes, suspensions, crashes."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import wait_all_tasks_blocked

from abeyance.actors.core import (
    ActorSystem,
    Backoff,
    ChildSpec,
    MailboxFullError,
    SupervisorSpec,
    TrioActor,
)

CAPACITY = 4
HIGH, LOW = 3, 1


class Machine(TrioActor):
    mailbox_capacity = CAPACITY
    mailbox_high = HIGH
    mailbox_low = LOW

    @staticmethod
    def coalesce_key(message):
        return message[0]

    @classmethod
    def make_kept(cls):
        return {"handled": [], "stashes": False}

    def on_receive(self, message):
        match message:
            case "unstash":
                self.unstash_all()
            case ("boom", _):
                raise ValueError("boom")
            case _ if self.kept["stashes"]:
                return self.stash()
            case _:
                self.kept["handled"].append(message)
        return message


@dataclass
class Model:
    """What the mailbox is to do, by lists."""

    overflow: str
    stashes: bool = False
    suspended: bool = False
    high: bool = False
    user: list = field(default_factory=list)
    returned: list = field(default_factory=list)
    stashed: list = field(default_factory=list)
    handled: list = field(default_factory=list)
    accepted: int = 0
    dropped: int = 0
    quarantined: int = 0
    marks: list = field(default_factory=list)

    def load(self):
        return len(self.user) + len(self.returned) + len(self.stashed)

    def mark(self):
        if not self.high and self.load() >= HIGH:
            self.high = True
            self.marks.append("mailbox_high")
        elif self.high and self.load() <= LOW:
            self.high = False
            self.marks.append("mailbox_low")

    def put(self, message):
        """Return whether it is accepted."""
        if self.overflow == "coalesce":
            for place, (key, _) in enumerate(self.user):
                if key == message[0]:
                    self.user[place] = message
                    self.accepted += 1
                    self.dropped += 1
                    return True
        if self.load() >= CAPACITY:
            if self.overflow == "reject":
                return False
            if self.overflow == "coalesce":
                return False
            self.accepted += 1
            self.dropped += 1
            if self.overflow == "drop_newest":
                return True
            if self.user:
                self.user.pop(0)
            else:
                self.dropped -= 1
        else:
            self.accepted += 1
        self.user.append(message)
        self.mark()
        return True

    def crash(self):
        self.returned[:0], self.stashed = self.stashed, []

    def run(self):
        while not self.suspended and (self.returned or self.user):
            message = (self.returned or self.user).pop(0)
            if message[0] == "boom":
                self.quarantined += 1
                self.crash()
            elif self.stashes:
                self.stashed.append(message)
            else:
                self.handled.append(message)
        self.mark()


steps = st.one_of(
    st.tuples(st.just("put"), st.sampled_from(["a", "b", "c", "d", "e", "boom"])),
    st.tuples(st.just("put"), st.sampled_from(["a", "b", "c", "d", "e"])),
    st.tuples(st.just("stash"), st.booleans()),
    st.tuples(st.just("suspend"), st.booleans()),
    st.just(("unstash", None)),
    st.just(("kill", None)),
)


async def play(overflow, program):
    events = []
    actor_class = type("Machine", (Machine,), {"overflow": overflow})
    async with ActorSystem(on_event=lambda event: events.append(event.kind)) as system:
        supervisor = await system.start_supervisor(
            SupervisorSpec(
                "g", (ChildSpec("a", actor_class),), backoff=Backoff(0, 0), intensity=10_000
            )
        )
        ref = supervisor.refs["a"]
        kept = ref._cell.kept
        model = Model(overflow)
        await wait_all_tasks_blocked()
        for number, (step, value) in enumerate(program):
            match step:
                case "put":
                    message = (value, number)
                    if model.put(message):
                        ref.tell(message)
                    else:
                        with pytest.raises(MailboxFullError):
                            ref.tell(message)
                case "stash":
                    kept["stashes"] = model.stashes = value
                case "suspend":
                    assert ref.suspend() if value and not model.suspended else True
                    assert ref.resume() if not value and model.suspended else True
                    model.suspended = value
                case "unstash":
                    ref.tell_internal("unstash")
                    model.crash()
                case "kill":
                    ref.kill()
                    model.crash()
            await wait_all_tasks_blocked()
            model.run()
            box = ref._box.statistics()
            assert kept["handled"] == model.handled
            assert [message for message, _, _ in ref._box.user] == model.user
            assert [message for message, _, _ in ref._box.returned or ()] == model.returned
            assert [message for message, _, _ in ref._box.stashed or ()] == model.stashed
            assert (box.suspended, box.above_high) == (model.suspended, model.high)
            assert sum(box.dead.values()) == model.dropped
            assert ref.statistics().quarantined == model.quarantined
            unstashes = sum(step == "unstash" for step, _ in program[: number + 1])
            assert ref._cell.accounted() == model.accepted + unstashes
            assert [kind for kind in events if kind.startswith("mailbox")] == model.marks
        return ref.statistics().handled


@pytest.mark.parametrize("overflow", ["reject", "coalesce", "drop_oldest", "drop_newest"])
@settings(max_examples=60)
@given(program=st.lists(steps, max_size=30))
def test_mailbox_does_what_a_model_of_lists_does(overflow, program):
    trio.run(play, overflow, program)
