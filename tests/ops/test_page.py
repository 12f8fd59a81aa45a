"""The page of the HTTP API in a real browser, over a real host in another thread.

What needs a browser is skipped, visibly, where Chromium and its driver are not installed (Debian:
`apt-get install chromium chromium-driver`). `ABEYANCE_SHOTS=docs/pictures` renews the documents'
pictures.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import httpx2
import pytest

from abeyance.actors import (
    AgentSpec,
    HostedRuntime,
    HttpApi,
    ModelChoice,
    NeedsApproval,
    RunContext,
    Tool,
    open_runtime,
)
from abeyance.actors.ops.http import assets
from abeyance.actors.providers import CapacityExhaustedError, Exhaustion
from abeyance.actors.testing import ScriptedProvider, call_tool, fail, reply

ADMIN = "the-admins-own-token"
READER = "who-may-only-look-around"
SEEN_S_MAX = 15.0
SIZE = (820, 1_000)
PAGE = files(assets.__package__) / "page"


# -- without a browser ----------------------------------------------------------------------------


async def test_page_is_given_without_a_token_and_lets_a_browser_run_its_own_files_alone(
    state: Path,
) -> None:
    how = HttpApi(port=0, admin_token=ADMIN, read_token=READER)
    async with (
        open_runtime(state, http=how) as runtime,
        httpx2.AsyncClient(base_url=str(runtime.http_url)) as client,
    ):
        for path in ("/", "/page.css", "/page.js", "/acts.js", "/texts.js"):
            answer = await client.get(path, headers={"sec-fetch-site": "cross-site"})
            assert answer.status_code == 200, path
            policy = answer.headers["content-security-policy"]
            assert "default-src 'none'; script-src 'self'; style-src 'self'" in policy
            assert "frame-ancestors 'none'" in policy
            assert "unsafe" not in policy
        assert (await client.get("/v1/status")).status_code == 401
        assert (await client.get("/page.js/../assets.py")).status_code == 401
        foreign = await client.get("/", headers={"host": "evil.example"})
        assert foreign.status_code == 421


def test_every_file_of_the_page_is_served_and_none_is_named_that_is_not_there() -> None:
    served = {"index.html" if path == "/" else path[1:] for path in assets.assets()}
    assert served == {each.name for each in PAGE.iterdir()}


def test_nothing_of_the_page_sets_markup_or_asks_another_site() -> None:
    for each in PAGE.iterdir():
        text = each.read_text()
        for word in ("innerHTML", "outerHTML", "insertAdjacent", "document.write", "eval(", "://"):
            assert word not in text, (each.name, word)
    page = (PAGE / "index.html").read_text()
    assert " style=" not in page
    assert " on" + "click" not in page


# -- with one -------------------------------------------------------------------------------------

in_browser = [
    pytest.mark.slow,
    pytest.mark.skipif(
        shutil.which("chromium") is None or shutil.which("chromedriver") is None,
        reason="Chromium and its driver are not installed",
    ),
]


class Browser:
    """A driven Chromium, and what a person would see and press in it."""

    def __init__(self) -> None:
        from selenium import webdriver
        from selenium.webdriver.chrome.service import Service

        options = webdriver.ChromeOptions()
        options.binary_location = str(shutil.which("chromium"))
        for each in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
            options.add_argument(each)
        service = Service(str(shutil.which("chromedriver")))
        self.driver = webdriver.Chrome(options=options, service=service)
        self.resize(*SIZE)

    def resize(self, width: int, height: int) -> None:
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)

    def open(self, url: str) -> None:
        self.driver.get(url)
        self.driver.execute_script("sessionStorage.clear(); localStorage.clear()")
        self.driver.get(url)

    def all(self, css: str) -> list[Any]:
        return list(self.driver.find_elements("css selector", css))

    def text(self, css: str) -> str:
        """What is visible of the elements, a line each."""
        script = (
            "return [...document.querySelectorAll(arguments[0])]"
            ".filter((e) => e.offsetParent !== null || getComputedStyle(e).position === 'fixed')"
            ".map((e) => e.innerText).join('\\n')"
        )
        return str(self.driver.execute_script(script, css))

    def until(self, holds: Callable[[], Any], what: str) -> None:
        from selenium.webdriver.support.ui import WebDriverWait

        WebDriverWait(self.driver, SEEN_S_MAX, 0.05).until(lambda _: holds(), what)

    def until_text(self, css: str, text: str) -> None:
        self.until(
            lambda: text in self.text(css), f"{text!r} in {css}; there is {self.text(css)!r}"
        )

    def press(self, name: str, within: str = "body") -> None:
        (button,) = [
            each
            for each in self.all(f"{within} button")
            if each.text == name and each.is_displayed()
        ]
        button.click()

    def fill(self, **fields: str) -> None:
        for name, value in fields.items():
            (field,) = self.all(f"#ask [name={name}]")
            field.clear()
            field.send_keys(value)

    def confirm(self, name: str, receipt: str, **fields: str) -> None:
        """Fill in what the dialog asks for, press its button, and read the receipt."""
        self.fill(**fields)
        self.press(name, "#ask")
        self.until_text("#receipts", receipt)

    def keys(self, *keys: str) -> None:
        from selenium.webdriver.common.action_chains import ActionChains

        for each in keys:
            ActionChains(self.driver).send_keys(each).perform()

    def focused(self) -> str:
        return str(self.driver.execute_script("return document.activeElement.innerText"))

    def shoot(self, name: str) -> None:
        directory = os.environ.get("ABEYANCE_SHOTS")
        if directory:
            # A picture is of any host: where its state is on this machine is left out.
            self.driver.execute_script(
                "const walk = document.createTreeWalker(document.body, 4);"
                "while (walk.nextNode()) walk.currentNode.data ="
                " walk.currentNode.data.replaceAll(/\\/\\S*\\/state/g, '/srv/state')"
            )
            self.driver.save_screenshot(str(Path(directory) / f"{name}.png"))


@pytest.fixture(scope="module")
def _chromium() -> Iterator[Browser]:
    browser = Browser()
    try:
        yield browser
    finally:
        browser.driver.quit()


@pytest.fixture
def browser(_chromium: Browser) -> Iterator[Browser]:
    _chromium.resize(*SIZE)
    yield _chromium
    errors = [each for each in _chromium.driver.get_log("browser") if each["source"] != "network"]
    assert errors == [], "the page wrote errors"


@pytest.fixture
def host(state: Path) -> Iterator[HostedRuntime]:
    with HostedRuntime(state, http=HttpApi(port=0, admin_token=ADMIN)) as hosted:
        yield hosted


def held(hosted: HostedRuntime, name: str = "ana") -> Any:
    """An agent whose turn a provider holds for two hours, and that answers then."""
    script = [fail(429, retry_after=7_200), reply("At last.")]
    spec = AgentSpec(name=name, provider=ScriptedProvider(script), model="opus")
    agent = hosted.add_agent(spec)
    agent.send("Hello?", author="bo")
    agent.wait_idle()
    return agent


def asks_to_pay(hosted: HostedRuntime, to: str) -> tuple[Any, list[str]]:
    """An agent whose call of a tool waits for a person, and what the tool did."""
    paid: list[str] = []

    def pay(amount: int, to: str) -> str:
        paid.append(to)
        return f"paid {amount}"

    fields = {"amount": {"type": "integer"}, "to": {"type": "string"}}
    tool = Tool(
        name="pay",
        description="Pay somebody.",
        input_schema={"type": "object", "properties": fields},
        run=pay,
        approve=NeedsApproval(within_s=86_400, otherwise="deny"),
    )
    script = [call_tool("pay", {"amount": 900, "to": to}), reply("Done.")]
    spec = AgentSpec(name="ana", provider=ScriptedProvider(script), model="m", tools=[tool])
    ana = hosted.add_agent(spec)
    ana.send("Pay.", author="cy")
    return ana, paid


class TestInABrowser:
    pytestmark = in_browser

    def test_a_wait_is_shown_as_a_clock_and_released_after_it_was_said_what_that_does(
        self, browser: Browser, host: HostedRuntime
    ) -> None:
        ana = held(host)
        browser.open(str(host.http_url))
        browser.until_text("#waits .card", "ana on opus")
        card = browser.text("#waits .card")
        assert "1h 59m left" in card or "2h left" in card
        assert "until " in card
        assert "holds a turn" in card
        assert browser.driver.title == "(1) Abeyance"
        browser.press("Release", "#waits")
        said = browser.text("#ask")
        assert "Release ana on opus?" in said
        assert "a call to the provider" in said
        browser.press("Leave it as it is", "#ask")
        assert browser.focused() == "Release"
        assert len(host.provider_waits()) == 1
        browser.press("Release", "#waits")
        browser.shoot("release")
        browser.confirm("Release", "Released ana on opus: recorded.", requester="cy", token=ADMIN)
        browser.until_text("#waits", "Nothing waits.")
        ana.wait_idle()
        assert [message.text for message in ana.transcript()][-1] == "At last."

    def test_a_wrong_token_is_said_so_and_changes_nothing(
        self, browser: Browser, host: HostedRuntime
    ) -> None:
        held(host)
        browser.open(str(host.http_url))
        browser.until_text("#waits .card", "ana on opus")
        browser.press("Release", "#waits")
        browser.fill(token="no-token-of-this-host")
        browser.press("Release", "#ask")
        browser.until_text("#ask-wrong", "the request has a wrong token; nothing was done")
        assert len(host.provider_waits()) == 1
        browser.confirm("Release", "Released ana on opus", token=ADMIN)
        browser.driver.refresh()
        browser.until_text("#sign", "Sign out")
        browser.press("Sign out")
        assert ADMIN not in str(
            browser.driver.execute_script("return JSON.stringify(sessionStorage)")
        )

    def test_a_token_that_is_no_more_the_hosts_is_forgotten_and_is_one_guess_a_look(
        self, browser: Browser, state: Path
    ) -> None:
        how = HttpApi(port=0, admin_token=ADMIN, read_token=READER)
        with HostedRuntime(state.parent / "another", http=how) as hosted:
            held(hosted)
            browser.open(str(hosted.http_url))
            for _ in range(3):
                browser.driver.execute_script("sessionStorage.setItem('token', 'of-yesterday')")
                browser.driver.refresh()
                browser.until_text("#link", "this host asks for a token: sign in")
                browser.until_text("#sign", "Sign in to change something")
            browser.press("Sign in to change something")
            browser.confirm("Sign in", "This tab holds a token.", token=READER)
            browser.until_text("#waits .card", "ana on opus")

    def test_a_dialog_stays_until_the_host_has_answered(
        self, browser: Browser, host: HostedRuntime
    ) -> None:
        from selenium.webdriver.common.keys import Keys

        held(host)
        browser.open(str(host.http_url))
        browser.until_text("#waits .card", "ana on opus")
        browser.driver.execute_script(
            "const ask = window.fetch; window.fetch = (path, how) => how?.method !== 'POST'"
            " ? ask(path, how)"
            " : new Promise((go) => { window.letGo = () => go(ask(path, how)); })"
        )
        browser.press("Release", "#waits")
        browser.fill(token=ADMIN)
        browser.press("Release", "#ask")
        browser.keys(Keys.ESCAPE)
        assert "Release ana on opus?" in browser.text("#ask")
        enabled = [each.text for each in browser.all("#ask button") if each.is_enabled()]
        assert enabled == []
        browser.driver.execute_script("window.letGo()")
        browser.until_text("#receipts", "Released ana on opus: recorded.")
        browser.until(lambda: not browser.text("#ask"), "the dialog closes")

    def test_what_happens_is_seen_without_a_reload_and_keeps_the_focus(
        self, browser: Browser, host: HostedRuntime
    ) -> None:
        held(host)
        browser.open(str(host.http_url))
        browser.until_text("#waits .card", "ana on opus")
        (button,) = browser.all("#waits button")
        browser.driver.execute_script("arguments[0].focus()", button)
        held(host, "ben")
        browser.until_text("#waits", "ben on opus")
        browser.until_text("#agents", "ben")
        assert browser.driver.switch_to.active_element == button
        host.release_provider_wait("ben", requester="host")
        browser.until(lambda: "ben" not in browser.text("#waits"), "ben's wait goes")

    def test_it_is_used_by_keyboard_alone(self, browser: Browser, host: HostedRuntime) -> None:
        from selenium.webdriver.common.keys import Keys

        held(host)
        browser.open(str(host.http_url))
        browser.until_text("#waits .card", "ana on opus")
        for _ in range(20):
            browser.keys(Keys.TAB)
            if browser.focused() == "Release":
                break
        browser.keys(Keys.ENTER)
        browser.until_text("#ask", "Release ana on opus?")
        browser.keys(Keys.ESCAPE)
        browser.until(lambda: not browser.text("#ask"), "the dialog closes")
        assert browser.focused() == "Release"
        browser.keys(Keys.ENTER)
        browser.until_text("#ask", "Release ana on opus?")
        browser.keys(ADMIN, Keys.ENTER)
        browser.until_text("#receipts", "Released ana on opus")
        assert host.provider_waits() == ()

    def test_it_fits_a_telephone(self, browser: Browser, host: HostedRuntime) -> None:
        held(host, "an-agent-whose-name-is-longer-than-a-telephone-is-wide-" + "x" * 60)
        browser.resize(360, 740)
        browser.open(str(host.http_url))
        browser.until_text("#waits .card", "an-agent-whose-name")
        browser.press("Release", "#waits")
        for script in ("document.documentElement.scrollWidth", "document.body.scrollWidth"):
            assert browser.driver.execute_script(f"return {script}") <= 360
        sides = browser.driver.execute_script(
            "const r = document.getElementById('ask').getBoundingClientRect();"
            " return [r.left, r.right]"
        )
        assert sides[0] >= 0
        assert sides[1] <= 360
        small = browser.driver.execute_script(
            "return [...document.querySelectorAll('button')].filter((b) => b.offsetParent"
            " && b.getBoundingClientRect().height < 44).map((b) => b.innerText)"
        )
        assert small == []
        browser.press("Leave it as it is", "#ask")

    def test_foreign_text_is_text_and_what_nobody_sees_is_shown(
        self, browser: Browser, host: HostedRuntime
    ) -> None:
        asks_to_pay(host, to="<img src=x onerror=alert(1)> \u202egnp.exe\u202c \x1b[31m")
        browser.open(str(host.http_url))
        browser.until_text("#approvals .card", "<img src=x onerror=alert(1)>")
        assert browser.all("main img") == []
        browser.press("Deny", "#approvals")
        for place in ("main", "#ask"):
            assert not set("\u202e\u202c\x1b") & set(browser.text(place))

    def test_a_run_is_resumed_sent_to_another_model_and_cancelled(
        self, browser: Browser, host: HostedRuntime
    ) -> None:
        tried: list[Any] = []
        later_ms = int(time.time() * 1_000) + 3 * 86_400_000

        async def write(run: RunContext, _params: Any) -> Any:
            async def body() -> str:
                tried.append((run.key, run.choice))
                if run.choice is None and (run.key == "nightly" or len(tried) < 4):
                    out = Exhaustion(
                        provider="anthropic", model="opus", window="seven_day", retry_at_ms=later_ms
                    )
                    raise CapacityExhaustedError((out,))
                return "written"

            return await run.do("write", body)

        async def start(runtime: Any) -> None:
            for key in ("report", "nightly", "spare"):
                await runtime.start_run(key, "write")

        host.runtime.add_workflow("write", write, fallbacks=[ModelChoice("openai", "gpt")])
        browser.open(str(host.http_url))
        host._call(start, True)
        for key in ("report", "nightly", "spare"):
            browser.until_text("#runs", key)
        browser.until(
            lambda: browser.text("#runs .card").count("Waiting for anthropic capacity") == 3,
            "three runs wait",
        )
        assert "resumes after" in browser.text("#runs")
        browser.shoot("runs")
        cards = {each.text.split("@")[0]: each for each in browser.all("#runs .card")}
        names = [
            [b.text for b in card.find_elements("tag name", "button")] for card in cards.values()
        ]
        assert names == [["Resume now", "Use fallback", "Cancel"]] * 3

        def press(key: str, name: str) -> None:
            (card,) = [each for each in browser.all("#runs .card") if key in each.text]
            (button,) = [b for b in card.find_elements("tag name", "button") if b.text == name]
            button.click()

        press("report", "Resume now")
        assert "what is done is not done again" in browser.text("#ask")
        browser.confirm("Resume now", "report@1 is", token=ADMIN)
        browser.until(lambda: "report" not in browser.text("#runs"), "the resumed run ends")
        press("nightly", "Use fallback")
        browser.confirm("Use fallback", "nightly@1 is", provider="openai", model="gpt")
        browser.until(lambda: "nightly" not in browser.text("#runs"), "it ends on the other model")
        press("spare", "Cancel")
        browser.confirm("Cancel", "spare@1 is cancelled.", reason="not needed")
        browser.until_text("#runs", "No run that has not ended.")
        assert host.runtime.run("report").state == "completed"
        assert host.runtime.run("nightly").state == "completed"
        assert host.runtime.run("spare").state == "cancelled"
        assert tried[-1] == ("nightly", ModelChoice("openai", "gpt"))

    @pytest.mark.parametrize(("name", "made"), [("Allow", 1), ("Deny", 0)])
    def test_a_call_that_waits_for_a_person_is_decided(
        self, browser: Browser, host: HostedRuntime, name: str, made: int
    ) -> None:
        ana, paid = asks_to_pay(host, to="bo")
        browser.open(str(host.http_url))
        browser.until_text("#approvals .card", "ana wants to call pay")
        browser.press(name, "#approvals")
        assert '"amount"' in browser.text("#ask")
        browser.confirm(name, "pay of ana is", note="as agreed", token=ADMIN)
        ana.wait_idle()
        assert len(paid) == made
        browser.until_text("#approvals", "No call waits for a person.")

    def test_messages_that_wait_are_shown_with_the_cause_and_a_turn_is_cancelled(
        self, browser: Browser, host: HostedRuntime
    ) -> None:
        ana = held(host)
        host.quiesce("upgrade", requester="ops")
        ana.send("And this?", author="bo")
        browser.open(str(host.http_url))
        browser.until_text("#inbox", "bo to ana")
        assert "the host is quiesced" in browser.text("#inbox")
        assert "upgrade; no turn starts" in browser.text("#host")
        browser.press("Serve again")
        browser.confirm("Serve again", "Turns start again", token=ADMIN)
        browser.until_text("#agents", "held")
        browser.press("Cancel turn", "#agents")
        browser.confirm("Cancel turn", "Turn 1 of ana is")
        browser.until(lambda: host.status().agents[0].turn != 1, "its turn ends")

    def test_alerts_and_dead_letters_are_listed_and_one_is_sent_again(
        self, browser: Browser, host: HostedRuntime
    ) -> None:
        held(host)
        ben = held(host, "ben")
        ben.send("For later", author="bo")
        host.remove_agent("ben")
        browser.open(str(host.http_url))
        browser.until_text("#alerts", "provider wait")
        browser.until_text("#dead", "dead letter")
        held(host, "ben")
        browser.all("#dead .row button")[0].click()
        assert "If it was handled after all, it is handled twice." in browser.text("#ask")
        browser.confirm("Send again", "was sent to", token=ADMIN)
        browser.until_text("#dead", "replayed 1 times")

    def test_the_header_says_when_the_host_is_not_heard_from(
        self, browser: Browser, state: Path
    ) -> None:
        with HostedRuntime(state.parent / "another", http=HttpApi(port=0)) as hosted:
            held(hosted)
            browser.open(str(hosted.http_url))
            browser.until_text("#waits .card", "ana on opus")
        browser.until_text("#link", "the host does not answer; what is shown may be old")
        assert "ana on opus" in browser.text("#waits")

    def test_a_host_that_asks_for_a_token_to_look_shows_nothing_without_it(
        self, browser: Browser, state: Path
    ) -> None:
        how = HttpApi(port=0, admin_token=ADMIN, read_token=READER)
        with HostedRuntime(state.parent / "another", http=how) as hosted:
            held(hosted)
            browser.open(str(hosted.http_url))
            browser.until_text("#link", "this host asks for a token: sign in")
            assert "ana" not in browser.text("main")
            browser.press("Sign in to change something")
            browser.confirm("Sign in", "This tab holds a token.", token=READER)
            browser.until_text("#waits .card", "ana on opus")
            browser.press("Release", "#waits")
            browser.press("Release", "#ask")
            browser.until_text("#ask-wrong", "this token may only look; nothing was done")
