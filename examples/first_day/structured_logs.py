"""Abeyance's log records as JSON lines of structlog, with the ids they are about.

Run it with a directory for its state. The provider is scripted, so that it needs no key.
"""

import logging
import sys

import structlog
import trio

from abeyance.actors import AgentSpec, CallFailure, GiveUp, Retry, StreamStored, open_runtime
from abeyance.actors.testing import ScriptedProvider, fail, reply

ABOUT = {"actor", "agent", "run", "turn"}


def only_known_ids(
    logger: object, method: str, event: structlog.typing.EventDict
) -> structlog.typing.EventDict:
    """Each record has all four ids; those that are None say nothing."""
    return {key: value for key, value in event.items() if key not in ABOUT or value is not None}


def configure() -> None:
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[
                structlog.stdlib.add_log_level,
                structlog.stdlib.add_logger_name,
                structlog.stdlib.ExtraAdder(allow=ABOUT),
            ],
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                only_known_ids,
                structlog.processors.dict_tracebacks,
                structlog.processors.JSONRenderer(sort_keys=True),
            ],
        )
    )
    logging.getLogger("abeyance").addHandler(handler)
    logging.getLogger("abeyance").setLevel(logging.WARNING)


class Forgetful:
    """An error policy with a mistake in it. What it should have decided, the default one does."""

    def decide(self, failure: CallFailure) -> Retry | GiveUp:
        raise KeyError(failure.model)


async def main(state: str) -> None:
    provider = ScriptedProvider([fail(503), reply("Here I am.")])
    spec = AgentSpec(name="ana", provider=provider, model="m", error_policy=Forgetful())
    async with open_runtime(state) as runtime:
        ana = await runtime.add_agent(spec)
        await ana.send("Hello?")
        async for item in ana.stream():
            if isinstance(item, StreamStored) and item.message.author == "ana":
                break


configure()
trio.run(main, sys.argv[1])
