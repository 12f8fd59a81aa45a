"""Metrics for Prometheus: collectors that read snapshots when they are scraped.

Needs the `metrics` extra. Nothing is counted for them in any hot path, and a host that does not
register one pays nothing. `registry.register(RuntimeCollector(runtime))` is all there is to do.

Figures of several systems or runtimes are told apart by the label `system`; `Together` gives one
registry what several collectors read, each family once.

Invariants:
    I1. Labels are bounded: states, causes and reasons are few by construction, class names of
        errors and actors' names are cut to the first so many, and the rest is one figure.
    I2. A scrape never waits for the loop longer than `WAIT_S`: what needs the loop is then left
        out, and `abeyance_runtime_unavailable` is 1.

A collector is called on whichever thread scrapes. Not on a thread that runs another trio loop.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final, Protocol

from prometheus_client import CollectorRegistry, Metric, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.registry import Collector

from abeyance.actors.core import ActorSystem, HostedSystem, TrioFuture
from abeyance.actors.core.errors import AbeyanceError
from abeyance.actors.core.future import Timeout
from abeyance.storage.errors import StorageError

if TYPE_CHECKING:
    from abeyance.actors.status import RuntimeStatistics

ACTORS_MAX: Final = 100
"""How many actors have figures of their own."""
ERRORS_MAX: Final = 20
"""How many classes of errors have figures of their own; the rest is `other`."""
WAIT_S: Final = 5.0


class SystemCollector(Collector):
    """The figures of an actor system.

    Args:
        system: Which; a HostedSystem, too.
        actors_max: How many named actors have figures of their own, oldest names first.
        name: What its figures are labelled with; by default the system's own name.
    """

    def __init__(
        self,
        system: ActorSystem | HostedSystem,
        *,
        actors_max: int = ACTORS_MAX,
        name: str | None = None,
    ) -> None:
        self._system = system.system if isinstance(system, HostedSystem) else system
        self._actors_max = actors_max
        self._name = self._system.name if name is None else name
        self._accepted = 0

    def describe(self) -> Iterator[Metric]:
        """Nothing: the names are known when they are collected."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        """Read the system. Any thread; waits for nobody."""
        yield from _labelled(self._name, self._collect())

    def _collect(self) -> Iterator[Metric]:
        stats = self._system.statistics()
        # Handled messages are counted a batch at a time; a counter must not fall meanwhile.
        self._accepted = max(self._accepted, stats.accepted)
        yield _by("abeyance_actors", "Live actors.", "state", stats.states)
        yield GaugeMetricFamily(
            "abeyance_mailbox_messages", "Messages that wait in user lanes.", value=stats.queued
        )
        yield GaugeMetricFamily(
            "abeyance_mailbox_oldest_seconds_max",
            "Upper bound on the age of the oldest message that waits; 0 where none does.",
            value=stats.oldest_s_max or 0.0,
        )
        yield GaugeMetricFamily(
            "abeyance_actors_handling", "Actors whose handler runs.", value=stats.in_flight
        )
        yield GaugeMetricFamily(
            "abeyance_replies_owed", "Replies that handlers owe.", value=stats.owed
        )
        yield GaugeMetricFamily(
            "abeyance_live_actor_restarts",
            "Restarts of the actors that live; falls when one ends.",
            value=stats.restarts,
        )
        yield CounterMetricFamily(
            "abeyance_accepted_messages", "Messages accepted.", value=self._accepted
        )
        yield CounterMetricFamily(
            "abeyance_handled_messages", "Messages handled.", value=stats.handled
        )
        yield _by(
            "abeyance_dead_letters",
            "Messages that ended unhandled in mailboxes of this process.",
            "reason",
            stats.dead_letters,
            counts=True,
        )
        yield _by(
            "abeyance_quarantined_messages",
            "Messages quarantined.",
            "error",
            _first(stats.quarantined, ERRORS_MAX),
            counts=True,
        )
        yield CounterMetricFamily(
            "abeyance_sink_failures", "Failures of sinks.", value=stats.sink_failures
        )
        yield from self._of_actors(stats.actors)

    def _of_actors(self, live: int) -> Iterator[Metric]:
        listed = self._system.named(self._actors_max)
        waiting = GaugeMetricFamily(
            "abeyance_actor_mailbox_messages", "Messages that wait for an actor.", labels=["actor"]
        )
        oldest = GaugeMetricFamily(
            "abeyance_actor_mailbox_oldest_seconds_max",
            "Upper bound on the age of the oldest of them; 0 where there is none.",
            labels=["actor"],
        )
        handled = CounterMetricFamily(
            "abeyance_actor_handled_messages", "Messages an actor handled.", labels=["actor"]
        )
        restarts = CounterMetricFamily(
            "abeyance_actor_restarts", "Restarts of an actor.", labels=["actor"]
        )
        for stats in listed:
            name = [stats.name]
            waiting.add_metric(name, stats.queued)
            oldest.add_metric(name, stats.oldest_s_max or 0.0)
            handled.add_metric(name, stats.handled)
            restarts.add_metric(name, stats.restarts)
        yield from (waiting, oldest, handled, restarts)
        yield GaugeMetricFamily(
            "abeyance_actors_without_figures",
            "Live actors that have no figures of their own.",
            value=max(0, live - len(listed)),
        )


class Measured(Protocol):
    """What is read of a runtime."""

    @property
    def system(self) -> ActorSystem:
        """Its actors."""

    def statistics(self) -> RuntimeStatistics:
        """Its figures, on its loop."""


class RuntimeCollector(Collector):
    """The figures of a runtime, with those of its actors.

    Args:
        runtime: Which: a `Runtime`, or what `HostedRuntime.runtime` is.
        actors_max: As for `SystemCollector`.
        wait_s: How long a scrape waits for the loop.
        name: What its figures are labelled with; by default the name of its system.
    """

    def __init__(
        self,
        runtime: Measured,
        *,
        actors_max: int = ACTORS_MAX,
        wait_s: float = WAIT_S,
        name: str | None = None,
    ) -> None:
        self._runtime = runtime
        self._name = runtime.system.name if name is None else name
        self._system = SystemCollector(runtime.system, actors_max=actors_max, name=name)
        self._wait_s = wait_s

    def describe(self) -> Iterator[Metric]:
        """Nothing: the names are known when they are collected."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        """Read the runtime. Any thread; waits for the loop for `wait_s` at most."""
        yield from self._system.collect()
        yield from _labelled(self._name, self._collect())

    def _collect(self) -> Iterator[Metric]:
        stats = self._read()
        yield GaugeMetricFamily(
            "abeyance_runtime_unavailable",
            "1 where the runtime has ended, or its loop did not answer in time.",
            value=float(stats is None),
        )
        if stats is not None:
            yield from _of_runtime(stats)

    def _read(self) -> RuntimeStatistics | None:
        """Read on the loop thread, where the store is read. None where it does not answer."""
        answer: TrioFuture[RuntimeStatistics] = TrioFuture()

        def read() -> None:
            try:
                answer.set(self._runtime.statistics())
            except Exception as error:  # noqa: BLE001 - the scraper's, below.
                answer.set_exception((type(error), error, error.__traceback__))

        if not self._runtime.system.on_loop(read):
            return None
        try:
            return answer.get(timeout=self._wait_s)
        except (AbeyanceError, StorageError, Timeout):
            return None


class Together(Collector):
    """Several collectors as one: of each family one, with the figures of all of them.

    Args:
        collectors: What reads them; their names must differ.
    """

    def __init__(self, *collectors: SystemCollector | RuntimeCollector) -> None:
        names = [each._name for each in collectors]
        if len(set(names)) < len(names):
            raise ValueError(
                f"collectors: two have one name in {names}; give each a name= of its own"
            )
        self._collectors = collectors

    def describe(self) -> Iterator[Metric]:
        """Nothing: the names are known when they are collected."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        """Read them one after the other."""
        families: dict[str, Metric] = {}
        for collector in self._collectors:
            for family in collector.collect():
                first = families.setdefault(family.name, family)
                if first is not family:
                    first.samples.extend(family.samples)
        yield from families.values()


def _labelled(name: str, families: Iterator[Metric]) -> Iterator[Metric]:
    for family in families:
        family.samples = [
            sample._replace(labels={"system": name, **sample.labels}) for sample in family.samples
        ]
        yield family


def _of_runtime(stats: RuntimeStatistics) -> Iterator[Metric]:
    yield _by("abeyance_agents", "Agents added here.", "state", stats.agents)
    yield _by("abeyance_holds", "Held turns.", "cause", stats.holds)
    yield GaugeMetricFamily(
        "abeyance_provider_waits", "Waits in force, of any agent.", value=stats.waits
    )
    yield GaugeMetricFamily(
        "abeyance_inbox_messages", "Accepted messages that are in no slot yet.", value=stats.inbox
    )
    yield GaugeMetricFamily("abeyance_wakes", "Wakes that no turn answers yet.", value=stats.wakes)
    yield GaugeMetricFamily(
        "abeyance_stored_dead_letters",
        "Dead letters in the store, whichever process made them.",
        value=stats.dead_letters,
    )
    yield GaugeMetricFamily(
        "abeyance_stored_quarantined_messages",
        "Quarantined messages in the store, whichever process made them.",
        value=stats.quarantine,
    )
    for what, text in (
        ("delivered", "Alerts that a sink took."),
        ("given_up", "Alerts that a sink never took."),
        ("failures", "Times that a sink of alerts failed."),
    ):
        family = CounterMetricFamily(f"abeyance_alerts_{what}", text, labels=["sink"])
        for sink in stats.alert_sinks:
            family.add_metric([sink.name], getattr(sink, what))
        yield family
    yield from _of_calls(stats)
    yield CounterMetricFamily(
        "abeyance_commit_requests", "Requests handed to the store.", value=stats.requests
    )
    yield HistogramMetricFamily(
        "abeyance_commit_seconds",
        "From the handing over of a batch of requests to its outcomes.",
        buckets=[(_bound(bound_s), count) for bound_s, count in stats.commits],
        sum_value=stats.commits_s,
    )


def _of_calls(stats: RuntimeStatistics) -> Iterator[Metric]:
    """What provider calls used since the runtime was opened; its models are bounded."""
    labels = ["provider", "model"]
    calls = CounterMetricFamily(
        "abeyance_provider_calls", "Calls that used tokens, or may have.", labels=labels
    )
    unknown = CounterMetricFamily(
        "abeyance_provider_calls_unknown",
        "Calls, among them, of which nobody knows what they used.",
        labels=labels,
    )
    tokens = CounterMetricFamily(
        "abeyance_provider_tokens", "Tokens that calls used.", labels=[*labels, "kind"]
    )
    cost = CounterMetricFamily(
        "abeyance_provider_cost",
        "What calls cost, by the host's prices.",
        labels=[*labels, "currency"],
    )
    for line in stats.spent:
        name = [line.provider or "", line.model or ""]
        calls.add_metric(name, line.calls)
        unknown.add_metric(name, line.unknown_calls)
        for kind in ("input", "output", "cache_read", "cache_write"):
            tokens.add_metric([*name, kind], getattr(line, f"{kind}_tokens"))
        if line.cost is not None:
            cost.add_metric([*name, line.currency or ""], float(line.cost))
    yield from (calls, unknown, tokens, cost)


def _bound(bound_s: float) -> str:
    return "+Inf" if bound_s == float("inf") else repr(bound_s)


def _by(
    name: str, text: str, label: str, figures: Mapping[str, int], *, counts: bool = False
) -> Metric:
    family: GaugeMetricFamily | CounterMetricFamily
    family = (CounterMetricFamily if counts else GaugeMetricFamily)(name, text, labels=[label])
    for value, figure in sorted(figures.items()):
        family.add_metric([value], figure)
    return family


def _first(figures: Mapping[str, int], most: int) -> dict[str, int]:
    """Return the first so many, the same at every scrape, and the sum of the rest."""
    items = list(figures.items())
    kept = dict(items[:most])
    rest = sum(figure for _, figure in items[most:])
    return {**kept, "other": kept.get("other", 0) + rest} if rest else kept


def exposition(collector: Collector) -> bytes:
    """What a scrape of one collector reads, as text. On a thread on which no loop runs."""
    registry = CollectorRegistry()
    registry.register(collector)
    return generate_latest(registry)
