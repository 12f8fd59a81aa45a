"""Metrics: what a scrape reads, in the text that Prometheus is given."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from decimal import Decimal
from inspect import signature
from pathlib import Path

import pytest
import trio
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from trio.testing import wait_all_tasks_blocked

from abeyance.actors import AgentSpec, HostedRuntime, Price, Prices, open_runtime
from abeyance.actors.core import ActorSystem, ChildSpec, HostedSystem, SupervisorSpec, TrioActor
from abeyance.actors.ops.metrics import RuntimeCollector, SystemCollector, Together
from abeyance.actors.providers import Usage
from abeyance.actors.testing import ScriptedProvider, fail, reply


class Worker(TrioActor):
    async def on_receive(self, message):
        if isinstance(message, BaseException):
            raise message
        if isinstance(message, trio.Event):
            await message.wait()


def scraped(collector):
    """Every sample of the exposition, by name and labels."""
    registry = CollectorRegistry()
    registry.register(collector)
    text = generate_latest(registry).decode()
    return {
        (sample.name, *(value for label, value in sample.labels.items() if label != "system")): (
            sample.value
        )
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_collector_of_a_hosted_system_collects_what_it_runs():
    with HostedSystem(name="hosted") as host:
        assert host.start(Worker).ask(None, timeout=10) is None
        found = scraped(SystemCollector(host))
        assert found["abeyance_accepted_messages_total",] == 1


async def test_metrics_of_a_system_are_what_its_statistics_say(autojump_clock):
    async with ActorSystem() as system:
        group = await system.start_supervisor(
            SupervisorSpec("group", (ChildSpec("a", Worker, name="a"),))
        )
        ref, gate = group.refs["a"], trio.Event()
        ref.tell("x")
        ref.tell(ValueError("no"))
        await wait_all_tasks_blocked()
        gone = system.start(Worker)
        gone.tell(gate)
        await wait_all_tasks_blocked()
        gone.tell("y")
        gone.stop(now=True)
        gate.set()
        await wait_all_tasks_blocked()
        gate = trio.Event()
        ref.tell(gate)
        await wait_all_tasks_blocked()
        ref.tell("x")
        ref.tell("x")
        await trio.sleep(5)
        found = scraped(SystemCollector(system))
        assert found["abeyance_actors", "running"] == 1
        assert found["abeyance_mailbox_messages",] == 2
        assert found["abeyance_mailbox_oldest_seconds_max",] == pytest.approx(5, abs=0.1)
        assert found["abeyance_actors_handling",] == 1
        assert found["abeyance_handled_messages_total",] == 2
        # "x" twice, an error, three gates' worth of handling and what was left behind them.
        assert found["abeyance_accepted_messages_total",] == 7
        assert found["abeyance_dead_letters_total", "stopped"] == 1
        assert found["abeyance_quarantined_messages_total", "ValueError"] == 1
        assert found["abeyance_live_actor_restarts",] == 1
        assert found["abeyance_actor_mailbox_messages", "a"] == 2
        assert found["abeyance_actor_restarts_total", "a"] == 1
        assert found["abeyance_actors_without_figures",] == 0
        gate.set()


async def test_metrics_have_bounded_labels_whatever_actors_and_errors_there_are(autojump_clock):
    async with ActorSystem() as system:
        for number in range(30):
            system.start(Worker, name=f"n{number}")
            error = type(f"E{number}Error", (Exception,), {})
            system.start(Worker).tell(error())
        await wait_all_tasks_blocked()
        found = scraped(SystemCollector(system, actors_max=10))
        actors = [key for key in found if key[0] == "abeyance_actor_restarts_total"]
        assert len(actors) == 10
        assert found["abeyance_actors_without_figures",] == 20
        errors = {
            key[1]: value
            for key, value in found.items()
            if key[0] == "abeyance_quarantined_messages_total"
        }
        assert len(errors) == 21
        assert errors["other"] == 10


async def test_metrics_of_several_systems_are_told_apart_and_each_family_is_there_once(
    autojump_clock,
):
    async with ActorSystem(name="one") as one, ActorSystem() as two:
        for system, count in ((one, 1), (two, 2)):
            for _ in range(count):
                system.start(Worker)
        await wait_all_tasks_blocked()
        together = Together(SystemCollector(one), SystemCollector(two, name="second"))
        registry = CollectorRegistry()
        registry.register(together)
        text = generate_latest(registry).decode()
        lines = [line for line in text.splitlines() if line.startswith("# TYPE")]
        assert len(lines) == len(set(lines))
        running = {
            sample.labels["system"]: sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if sample.name == "abeyance_actors" and sample.labels["state"] == "running"
        }
        assert running == {"one": 1, "second": 2}
        with pytest.raises(ValueError, match="name="):
            Together(SystemCollector(two), SystemCollector(two))


async def test_accepted_messages_never_fall(autojump_clock, monkeypatch):
    async with ActorSystem() as system:
        collector, real, seen = SystemCollector(system), system.statistics, iter((5, 3, 6))
        name = ("abeyance_accepted_messages_total",)
        with monkeypatch.context() as patch:
            patch.setattr(system, "statistics", lambda: replace(real(), accepted=next(seen)))
            assert [scraped(collector)[name] for _ in range(3)] == [5, 5, 6]


async def test_metrics_names_start_with_the_project_and_counters_end_in_total(autojump_clock):
    async with ActorSystem() as system:
        names = {key[0] for key in scraped(SystemCollector(system))}
    assert all(name.startswith("abeyance_") for name in names)


def test_metrics_of_a_runtime_are_scraped_from_a_host_thread(tmp_path: Path) -> None:
    with HostedRuntime(tmp_path / "state", control=False) as host:
        provider = ScriptedProvider([reply("hello"), fail(429, retry_after=7_200)])
        ana = host.add_agent(AgentSpec(name="ana", provider=provider, model="m"))
        for text in ("one", "two"):
            ana.send(text)
            ana.wait_idle()
        collector = RuntimeCollector(host.runtime)
        found = scraped(collector)
        assert found["abeyance_runtime_unavailable",] == 0
        assert found["abeyance_agents", "held"] == 1
        assert found["abeyance_holds", "wait"] == 1
        assert found["abeyance_provider_waits",] == 1
        assert found["abeyance_wakes",] == 0
        assert found["abeyance_inbox_messages",] == 0
        assert found["abeyance_alerts_given_up_total", "failures-log"] == 0
        assert found["abeyance_commit_requests_total",] >= found["abeyance_commit_seconds_count",]
        assert found["abeyance_commit_seconds_count",] >= 5
        assert (
            found["abeyance_commit_seconds_bucket", "+Inf"]
            == (found["abeyance_commit_seconds_count",])
        )
        assert found["abeyance_commit_seconds_sum",] > 0
        assert found["abeyance_actor_mailbox_messages", "agent:ana"] == 0
    after = scraped(collector)
    assert after["abeyance_runtime_unavailable",] == 1
    assert ("abeyance_provider_waits",) not in after


async def test_metrics_of_a_runtime_are_read_at_once_on_its_own_loop(tmp_path: Path) -> None:
    async with open_runtime(tmp_path / "state", control=False) as runtime:
        assert scraped(RuntimeCollector(runtime))["abeyance_runtime_unavailable",] == 0


def test_scrape_waits_for_the_loop_for_five_seconds_where_nobody_says_else():
    assert signature(RuntimeCollector).parameters["wait_s"].default == 5.0


async def test_metrics_leave_out_what_a_stalled_loop_does_not_answer(tmp_path: Path) -> None:
    async with open_runtime(tmp_path / "state", control=False) as runtime:
        collector = RuntimeCollector(runtime, wait_s=0.0)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(runtime.system, "on_loop", lambda *_: True)  # As if it never got to it.
            found = await trio.to_thread.run_sync(scraped, collector)
        assert found["abeyance_runtime_unavailable",] == 1
        assert ("abeyance_agents",) not in {key[:1] for key in found}
        assert found["abeyance_actors", "running"] >= 3  # What needs no loop is there.


async def test_calls_and_tokens_are_scraped_by_provider_and_model(tmp_path):
    prices = Prices("EUR", {("ScriptedProvider", "m"): Price(input=Decimal(1), output=Decimal(1))})
    async with open_runtime(tmp_path / "state", prices=prices) as runtime:
        usage = Usage(input_tokens=1_000, output_tokens=5, cache_read_tokens=3)
        provider = ScriptedProvider([reply("x", usage=usage)])
        ana = await runtime.add_agent(AgentSpec(name="ana", provider=provider, model="m"))
        await ana.send("go")
        await ana.wait_idle()
        found = await trio.to_thread.run_sync(scraped, RuntimeCollector(runtime))
        name = ("m", "ScriptedProvider")
        assert found["abeyance_provider_calls_total", *name] == 1
        assert found["abeyance_provider_calls_unknown_total", *name] == 0
        assert found["abeyance_provider_tokens_total", "input", *name] == 1_000
        assert found["abeyance_provider_tokens_total", "cache_read", *name] == 3
        assert found["abeyance_provider_cost_total", "EUR", *name] == pytest.approx(0.001008)


def test_every_figure_of_the_dashboard_is_one_that_a_runtime_has(tmp_path: Path) -> None:
    page = Path(__file__).parents[2] / "docs" / "grafana.json"
    asked = {
        name
        for panel in json.loads(page.read_text())["panels"]
        for target in panel["targets"]
        for name in re.findall(r"\babeyance_\w+", target["expr"])
    }
    with HostedRuntime(tmp_path / "state", control=False) as hosted:
        registry = CollectorRegistry()
        registry.register(RuntimeCollector(hosted.runtime))
        text = generate_latest(registry).decode()
    # A family without a sample has its type all the same.
    there = set()
    for name, kind in re.findall(r"^# TYPE (\S+) (\w+)$", text, re.M):
        there |= {f"{name}_bucket"} if kind == "histogram" else {name}
    assert asked <= there
    assert len(asked) > 15
