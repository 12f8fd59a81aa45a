"""What is logged of a crash, and that nothing is made for nobody."""

from __future__ import annotations

import logging
from contextlib import contextmanager

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from abeyance.actors.core import ActorSystem, TrioActor
from abeyance.actors.core.reporting import heard

LOGGER = logging.getLogger("abeyance.core")


class Breaks(TrioActor):
    def on_receive(self, message):
        raise ValueError(message)


class Keeps(logging.Handler):
    def __init__(self):
        super().__init__()
        self.records = []

    def emit(self, record):
        self.records.append(record)


@contextmanager
def nobody_listens():
    """As in a host that has not set up logging; pytest's own handlers come with each phase."""
    loggers = (LOGGER.parent, logging.getLogger())
    before = [logger.handlers for logger in loggers]
    for logger in loggers:
        logger.handlers = []
    try:
        yield
    finally:
        for logger, handlers in zip(loggers, before, strict=True):
            logger.handlers = handlers


async def crash():
    async with ActorSystem() as system:
        system.start(Breaks, name="fragile").tell("boom")
        await wait_all_tasks_blocked()


@pytest.mark.parametrize("name", ["abeyance.core", "abeyance", None])
async def test_crash_is_logged_with_its_traceback_to_whichever_handler_listens(name):
    listener = logging.getLogger(name)
    handler = Keeps()
    with nobody_listens():
        listener.addHandler(handler)
        await crash()
        listener.removeHandler(handler)
    (record,) = handler.records
    assert record.getMessage().startswith("Unhandled exception in Breaks (fragile, urn:uuid:")
    assert record.levelno == logging.ERROR
    assert (record.name, record.funcName) == ("abeyance.core", "_report_crash")
    text = logging.Formatter().format(record)
    assert "ValueError: boom" in text
    assert "in on_receive" in text


async def test_no_record_is_made_of_a_crash_that_nobody_listens_for(monkeypatch):
    made = []
    monkeypatch.setattr(LOGGER, "handle", made.append)
    with nobody_listens():
        await crash()
    assert made == []


def test_filter_on_the_way_is_somebody_who_listens():
    def look(_):
        return True

    with nobody_listens():
        assert not heard(LOGGER)
        LOGGER.addFilter(look)
        assert heard(LOGGER)
        LOGGER.removeFilter(look)


def test_handler_behind_a_logger_that_does_not_propagate_hears_nothing(monkeypatch):
    with nobody_listens():
        logging.getLogger().addHandler(Keeps())
        assert heard(LOGGER)
        monkeypatch.setattr(LOGGER, "propagate", False)
        assert not heard(LOGGER)


async def test_async_on_failure_is_given_up_after_its_time(
    autojump_clock,
):
    class Hangs(Breaks):
        async def on_failure(self, *_):
            await trio.sleep_forever()

    async with ActorSystem() as system:
        ref = system.start(Hangs)
        began = trio.current_time()
        ref.tell("boom")
        await ref.stopped()
        assert trio.current_time() - began == 5
