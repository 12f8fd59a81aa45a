"""The examples of a host's first day run, and print what their pages say."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples" / "first_day"


def play(name: str, *arguments: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name), *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.slow
def test_stop_button_ends_the_turn_once_and_the_next_message_is_answered(tmp_path: Path) -> None:
    assert play("cancel_turn.py", str(tmp_path / "state")) == [
        "turn 1: cancelled",
        "turn 1: cancelled",
        "the run: failed",
        "user: Everything about whales?",
        "assistant: (tools)",
        "results: (tools)",
        "marker: this turn was cancelled by api:cy",
        "user: Never mind. Hello?",
        "assistant: Hello again.",
    ]


@pytest.mark.slow
def test_message_past_a_limit_comes_back_and_is_sent_later(tmp_path: Path) -> None:
    assert play("limits.py", str(tmp_path / "state")) == [
        "too large: 7028 of 1000 bytes",
        "full: 2 of 2 messages",
        "waiting: 2 of 2",
        "user: Hello?",
        "ana: Hello!",
        "user: note one",
        "user: note two",
        "ana: Two notes, I see.",
        "user: note three",
        "ana: And a third.",
    ]


@pytest.mark.slow
def test_request_past_the_models_context_goes_on_behind_a_summary_or_fails_typed(
    tmp_path: Path,
) -> None:
    assert play("context_limit.py", str(tmp_path / "state")) == [
        "a request is answered",
        "a request is answered",
        "a request is answered",
        "a request is too long",
        "summed up",
        "a request is answered",
        "rows 1 to 4: A summary of the conversation up to here:",
        "",
        "They wrote of towns.",
        "a request is too long",
        "summed up",
        "a request is too long",
        "marker: this turn failed: prompt is too long",
    ]


@pytest.mark.slow
def test_wait_is_ended_over_http_by_who_has_the_token(tmp_path: Path) -> None:
    assert play("http_api.py", str(tmp_path / "state")) == [
        "ana may not call m",
        "without the token: 401 unauthorized",
        "with it: recorded",
        "user: Hello?",
        "ana: At last.",
    ]


@pytest.mark.slow
def test_budget_holds_until_somebody_lets_the_agent_go_on(tmp_path: Path) -> None:
    assert play("usage.py", str(tmp_path / "state")) == [
        "Monday: idle",
        "Tuesday: idle",
        "Wednesday: held",
        "large: the budget 'month' of 0.05 EUR a month is used up (0.05)",
        "ana: 3 calls, 3600 tokens, 0.0810 EUR",
    ]


@pytest.mark.slow
def test_payment_waits_for_a_person_through_a_restart_and_is_made_once(tmp_path: Path) -> None:
    assert play("approvals.py", str(tmp_path / "state")) == [
        'ana wants to pay {"amount": 900, "to": "bo"}',
        "ana/1/1/0: approved by api:cy",
        "[the bank] 900 to bo",
        "user: Pay bo what we owe.",
        "assistant: (tools)",
        "results: (tools)",
        "assistant: Done.",
    ]


@pytest.mark.slow
def test_bridge_that_died_repeats_what_it_did_not_acknowledge_and_the_chat_has_each_once(
    tmp_path: Path,
) -> None:
    assert play("outbox.py", str(tmp_path / "state")) == [
        "[#general] one",
        "[#general] two",
        "chat: 2 to go",
        "[#general] again: two",
        "[#general] three",
        "the chat shows one, two, three",
    ]


@pytest.mark.slow
def test_log_records_become_json_lines_with_the_ids_they_are_about(tmp_path: Path) -> None:
    (line,) = map(json.loads, play("structured_logs.py", str(tmp_path / "state")))
    assert line["event"] == "the error policy of 'ana' raised; the default decides"
    assert (line["agent"], line["level"]) == ("ana", "error")
    assert line["logger"].startswith("abeyance.actors.")
    assert line["exception"][0]["exc_type"] == "KeyError"
    assert "run" not in line


@pytest.mark.slow
def test_a_held_turn_is_two_traces_with_a_link_between_them(tmp_path: Path) -> None:
    said = play("traces.py", str(tmp_path / "state"))
    assert said[0] == "invoke_agent ana"
    assert "invoke_agent ana (goes on with the one before)" in said
    assert "      ask the station" in said


@pytest.mark.slow
def test_a_reply_that_was_cut_off_is_taken_back_and_said_again(tmp_path: Path) -> None:
    said = play("streaming.py", str(tmp_path / "state"))
    whole = "The sea rises and falls twice a day."
    assert len(said) == 4
    assert said[0]
    assert whole.startswith(said[0])
    assert said[1:] == ["(that did not count; once more)", whole, f"stored: {whole}"]


def test_a_declared_host_answers_lines_and_ends_with_its_input(tmp_path: Path) -> None:
    shutil.copytree(EXAMPLES / "serve", tmp_path / "serve")
    done = subprocess.run(
        [sys.executable, "-m", "abeyance.actors.ops.entry", "serve", "host.toml"],
        cwd=tmp_path / "serve",
        input="ana: hello\nbo: hi\n",
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ["ana> hello", "bo> hi"]


def test_another_model_answers_what_the_limited_one_could_not(tmp_path: Path) -> None:
    assert play("set_model.py", str(tmp_path / "state")) == [
        "ana is held, and asks large",
        "large -> small",
        "user: Hello?",
        "assistant: Hello!",
        "large is waited for still",
        "after a restart ana asks small",
    ]


def test_system_prompt_is_a_function_of_the_turn_and_the_same_in_all_its_requests(
    tmp_path: Path,
) -> None:
    assert play("system_prompt.py", str(tmp_path / "state")) == [
        "You are Ana, turn 1. Returns are free for 30 days.",
        "You are Ana, turn 1. Returns are free for 30 days.",
        "You are Ana, turn 2. Returns are free for 14 days.",
        "ana is idle",
        "this turn failed: the function that gives the system prompt of agent 'ana' failed: it "
        "raised KeyError: 'sales'",
    ]


@pytest.mark.slow
def test_a_picture_is_shown_and_a_sound_told_of_in_words(tmp_path: Path) -> None:
    assert play("attachments.py", str(tmp_path / "state")) == [
        "dot.png image/png 69 bytes",
        "stored once: True",
        "too large: 1001 of 1000 bytes",
        "refused: message[0].digest",
        "ana: I see: image, text",
        "ana: I see: document, text",
    ]


@pytest.mark.slow
def test_a_server_behind_a_base_url_and_a_second_wire_stream_and_call_tools(tmp_path: Path) -> None:
    assert play("second_wire.py", str(tmp_path / "state")) == [
        "ana, in 3 pieces: Let me see.",
        "ana, in 3 pieces: It is blue.",
        "bo, in 3 pieces: Let me see.",
        "bo, in 3 pieces: It is blue.",
        "asked: /v1/chat/completions /v1/chat/completions /v1/responses /v1/responses",
    ]


@pytest.mark.slow
def test_a_rotated_key_leaves_its_accounts_wall_and_is_in_no_file(tmp_path: Path) -> None:
    assert play("key_rotation.py", str(tmp_path / "state")) == [
        "in the first life: 1 wall, and ana and bo are held",
        "in the second life: 1 wall, and ana and bo are held",
        "ana: Hello!",
        "bo: Hello!",
        "the vault was asked 3 times",
        "a key is in 0 files",
    ]


def test_history_goes_by_age_and_an_id_that_is_forgotten_is_new(tmp_path: Path) -> None:
    assert play("retention.py", str(tmp_path / "state")) == [
        "young: {}",
        "after 40 days: {'spent': 3, 'carried': 2}",
        "sent again: stored 6 messages",
        "after 80 days: {'ids': 3}",
        "sent again: 8 messages",
        "calls that are counted: 4",
    ]


@pytest.mark.slow
def test_store_is_brought_to_a_newer_format_and_back_with_what_waits_in_it(tmp_path: Path) -> None:
    assert play("upgrade.py", str(tmp_path / "state")) == [
        "1 wait holds ana, calls made here: 1",
        "format 1; the newest known here is 2",
        "from 1 to 2",
        "1 wait holds ana, calls made here: 0",
        "from 2 to 1",
        "1 wait holds ana, calls made here: 0",
    ]
