"""Probes: what a test expects of an actor, in order and in time, in trio and from host threads."""

from __future__ import annotations

import pytest
import trio

from abeyance.actors.core import ActorDeadError, ActorSystem, Ended, HostedSystem, TrioActor
from abeyance.actors.testing import Probe


class Echo(TrioActor):
    def on_receive(self, message):
        to, what = message
        to.tell(what)


async def test_expect_returns_the_next_message_of_the_type():
    async with ActorSystem() as system:
        probe = Probe(system)
        echo = system.start(Echo)
        echo.tell((probe.ref, 1))
        echo.tell((probe.ref, "two"))
        assert await probe.expect(int) == 1
        assert await probe.expect(lambda text: text.startswith("t")) == "two"


async def test_expect_fails_on_the_next_message_if_it_is_another():
    async with ActorSystem() as system:
        probe = Probe(system, name="p")
        probe.ref.tell("other")
        with pytest.raises(AssertionError, match="probe p expected int, got 'other'"):
            await probe.expect(int)


async def test_expect_passes_over_others_where_asked_for():
    async with ActorSystem() as system:
        probe = Probe(system)
        for message in ("a", "b", 3, "c"):
            probe.ref.tell(message)
        assert await probe.expect(int, skipping=True) == 3
        assert await probe.expect(str) == "c"


async def test_expect_fails_at_its_deadline_and_says_what_came(autojump_clock):
    async with ActorSystem() as system:
        probe = Probe(system)
        began = trio.current_time()
        with pytest.raises(AssertionError, match=r"within 2 s; nothing came"):
            await probe.expect(int, within_s=2)
        assert trio.current_time() - began == 2
        probe.ref.tell("a")
        with pytest.raises(AssertionError, match=r"only \['a'\] came"):
            await probe.expect(int, within_s=2, skipping=True)


async def test_expect_nothing_waits_its_time_and_fails_on_anything(autojump_clock):
    async with ActorSystem() as system:
        probe = Probe(system)
        began = trio.current_time()
        await probe.expect_nothing(within_s=4)
        assert trio.current_time() - began == 4
        probe.ref.tell("a")
        with pytest.raises(AssertionError, match="expected nothing, got 'a'"):
            await probe.expect_nothing(within_s=4)
        assert trio.current_time() - began < 5


async def test_probe_that_is_asked_replies_when_the_test_does():
    async with ActorSystem() as system:
        probe = Probe(system)
        first, second = probe.ref.ask("one"), probe.ref.ask("two")
        await probe.expect(str)
        probe.reply(1)
        assert await first == 1
        await probe.expect(str)
        probe.reply_error(KeyError("no"))
        with pytest.raises(KeyError):
            await second


async def test_probe_that_was_told_has_no_reply_to_give():
    async with ActorSystem() as system:
        probe = Probe(system)
        probe.ref.tell("x")
        await probe.expect(str)
        with pytest.raises(RuntimeError, match="owes no reply"):
            probe.reply()


async def test_probe_sees_the_end_of_whom_it_watches():
    async with ActorSystem() as system:
        probe = Probe(system)
        echo = system.start(Echo)
        await probe.watch(echo)
        await echo.stop()
        ended = await probe.expect(Ended)
        assert (ended.ref, ended.final) == (echo, True)


def test_probe_blocks_host_threads_in_place_of_being_awaited():
    with HostedSystem() as hosted:
        probe = Probe(hosted)
        echo = hosted.start(Echo)
        echo.tell((probe.ref, 1))
        assert probe.expect(int) == 1
        asked = probe.ref.ask("x", block=False)
        probe.expect(str)
        probe.reply("y")
        assert asked.get(timeout=60) == "y"
        probe.watch(echo)
        echo.stop()
        assert probe.expect(Ended).final
        with pytest.raises(AssertionError, match="nothing came"):
            probe.expect(int, within_s=0)
    with pytest.raises(ActorDeadError):
        probe.expect(int)
