"""The console in a real browser: every page for every role, by keyboard, on a phone, in both themes, below a prefix."""

import asyncio
import os
import re
import sys
from collections.abc import AsyncIterator
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest
from playwright.async_api import Page, Route, expect

from tests.browser.console import (
    AXE,
    PHONE,
    PREFIXES,
    ROLES,
    ConsoleService,
    Visitor,
    focused,
    overflow,
    serving_console,
    tab_to,
    violations,
)
from tests.http.client import open_body, same_key
from tests.http.conftest import new_sqlite
from tests.support.databases import Database
from tests.support.issuers import RSA, running_issuer

pytestmark = pytest.mark.slow

PAGES: dict[str, tuple[str, str]] = {
    "": ("Overview", "client reader operator"),
    "sessions": ("Sessions", "client reader operator"),
    "sessions?active=true&kind=2": ("Sessions", "client reader operator"),
    "sessions/{live}": ("Session", "client reader operator"),
    "sessions/{ended}": ("Session", "client reader operator"),
    "sessions/0190b0a0-0000-7000-8000-000000000000": ("Session", "client reader operator"),
    "open": ("Open and hold a session", "client operator"),
    "capacities": ("Capacities", "reader operator"),
    "capacities/0190b0a0-0000-7000-8000-000000000001": ("Capacity", "reader operator"),
    "capacities/nothing": ("Capacity", "reader operator"),
    "usage": ("Usage", "reader operator"),
    "usage?span=own&from=2026-01-01T00:00:00Z&groupBy=kind": ("Usage", "reader operator"),
    "deliveries": ("Deliveries", "reader operator"),
    "deliveries?gateway=usages&state=failed": ("Deliveries", "reader operator"),
    "cluster": ("Cluster", "reader operator"),
    "cluster/jobs/prune": ("Job prune", "reader operator"),
    "alerts": ("Alerts", "reader operator"),
    "audit-log": ("Audit log", "reader operator"),
    "audit-log?action=key.created&span=7d": ("Audit log", "reader operator"),
    "keys": ("Keys", "reader operator"),
    "find?id=nothing": ("Find", "client reader operator"),
    "no/such/page": ("Not found", "client reader operator"),
}
"""Maps the path of each page to a part of the page's heading, and to the roles that can reach the page by the
navigation or by a link. `{live}` and `{ended}` are the ids of sessions."""

IN_DARK = ["", "sessions", "sessions/{ended}"]
"""The pages that axe-core checks not only in the light theme, but also in the dark one. Together they contain all
components."""


@pytest.fixture(scope="module")
async def consoles(
    sqlite_template: Path, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[dict[str, ConsoleService]]:
    """One instance without a prefix, and one with a prefix. Tests do not clean up the sessions that they open."""
    async with (
        new_sqlite(sqlite_template, tmp_path_factory.mktemp("console")) as plain,
        new_sqlite(sqlite_template, tmp_path_factory.mktemp("console")) as below,
        serving_console(plain, PREFIXES[0]) as one,
        serving_console(below, PREFIXES[1]) as other,
    ):
        for service in (one, other):
            service.ids["live"] = (await service.open(sessionKind=2, leaseSeconds=3600))["sessionId"]
            service.ids["ended"] = (await service.open(leaseSeconds=3600))["sessionId"]
            await service.call("DELETE", f"/sessions/{service.ids['ended']}")
            await service.call("PUT", f"/capacities/{open_body()['capacityId']}", {"maxSessions": 20})
        yield {PREFIXES[0]: one, PREFIXES[1]: other}


@pytest.fixture(params=PREFIXES, ids=["root", "prefix"])
def console(request: pytest.FixtureRequest, consoles: dict[str, ConsoleService]) -> ConsoleService:
    return consoles[request.param]


@pytest.fixture
def plain(consoles: dict[str, ConsoleService]) -> ConsoleService:
    return consoles[""]


async def show(page: Page, console: ConsoleService, path: str, heading: str) -> None:
    """Goes to a page, and waits until the page shows its content."""
    await page.goto(f"{console.address}/{path.format_map(console.ids)}")
    await expect(page.get_by_role("heading", level=1)).to_contain_text(heading)
    await expect(page.locator(".loading")).to_have_count(0)


async def test_every_page_is_shown_to_its_roles(console: ConsoleService, visitor: Visitor) -> None:
    for role in ROLES if console.prefix == "" else ["operator"]:
        page = await visitor.visit(console, role=role)
        for path, (heading, roles) in PAGES.items():
            if role not in roles:
                continue
            await show(page, console, path, heading)
            # On a busy machine, the page may show a lost connection for a moment, so this line waits.
            await expect(page.locator("[role=alert]"), f"{role} at {path}").to_have_count(0)
        await visitor.close()


@pytest.mark.skipif(not AXE, reason="TENURE_TEST_AXE does not name the file of axe-core")
async def test_axe_finds_nothing_serious_in_light_and_dark(plain: ConsoleService, visitor: Visitor) -> None:
    for theme in ("light", "dark"):
        page = await visitor.visit(plain, role=None, theme=theme)
        await expect(page.get_by_role("heading", level=1)).to_have_text("Sign in")
        assert await violations(page) == []
        page = await visitor.visit(plain, theme=theme)
        for path, (heading, _) in PAGES.items():
            if theme == "dark" and path not in IN_DARK:
                continue
            await show(page, plain, path, heading)
            assert await violations(page) == [], (path, theme)


async def test_every_page_fits_on_a_phone(plain: ConsoleService, visitor: Visitor) -> None:
    page = await visitor.visit(plain, viewport=PHONE, has_touch=True)
    for path, (heading, _) in PAGES.items():
        await show(page, plain, path, heading)
        assert await overflow(page) == 0, path
    await page.get_by_role("button", name="Menu").tap()
    await page.get_by_role("navigation").get_by_role("link", name="Sessions").tap()
    await expect(page.get_by_role("heading", level=1)).to_have_text("Sessions")
    await expect(page.get_by_role("navigation")).to_be_hidden()


async def test_person_signs_in_and_out_by_keyboard_alone(console: ConsoleService, visitor: Visitor) -> None:
    page = await visitor.visit(console, "sessions?kind=2", role=None)
    await expect(page.get_by_role("heading", level=1)).to_have_text("Sign in")
    await page.keyboard.type("tnr_operator_wrong")
    await page.keyboard.press("Enter")
    problem = page.get_by_role("alert")
    await expect(problem).to_contain_text("UNAUTHENTICATED")
    await expect(problem).to_contain_text("request")
    await page.keyboard.press("ControlOrMeta+a")
    await page.keyboard.type(console.keys["reader"])
    await page.keyboard.press("Enter")
    # The requested page is shown after the sign-in.
    await expect(page.get_by_role("heading", level=1)).to_have_text("Sessions")
    await expect(page.get_by_role("heading", level=1)).to_be_focused()
    (cookie,) = await page.context.cookies()
    assert (cookie["httpOnly"], cookie["sameSite"], cookie["path"]) == (True, "Strict", console.prefix or "/")
    await expect(page.get_by_role("table", name="Sessions")).to_be_visible()
    # The name of the key is shown as text.
    await tab_to(page, "<img src=x onerror=alert(1)> reader")
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("dialog")).to_contain_text("<img src=x onerror=alert(1)> reader")
    await tab_to(page, "Sign out")
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("heading", level=1)).to_have_text("Sign in")
    assert await page.context.cookies() == []


async def test_links_navigate_without_reloading(console: ConsoleService, visitor: Visitor) -> None:
    page = await visitor.visit(console)
    await page.evaluate("window.mark = 1")
    await page.keyboard.press("Tab")
    await page.keyboard.press("Enter")
    await expect(page.locator("#main")).to_be_focused()
    await page.get_by_role("navigation").get_by_role("link", name="Sessions").press("Enter")
    await expect(page.get_by_role("heading", level=1)).to_be_focused()
    assert page.url == f"{console.address}/sessions"
    assert await page.title() == "Sessions · Tenure"
    await page.get_by_label("Kind").select_option("3")
    await expect(page.locator(".empty")).to_contain_text("No session matches")
    assert page.url.endswith("/sessions?kind=3")
    await page.go_back()
    await page.go_back()
    await expect(page.get_by_role("heading", level=1)).to_have_text("Overview")
    assert await page.evaluate("window.mark") == 1


async def test_rows_follow_events_until_paused(console: ConsoleService, visitor: Visitor) -> None:
    """With a prefix, the caller has the role client, which cannot read events: the page polls instead."""
    role = "reader" if console.prefix == "" else "client"
    first = await console.open(leaseSeconds=600)
    page = await visitor.visit(console, f"sessions?capacity={first['capacityId']}", role=role)
    rows = page.locator("tbody tr")
    await expect(rows).to_have_count(1)
    second = await console.open(leaseSeconds=600, capacityId=first["capacityId"])
    await expect(rows).to_have_count(2)
    await console.call("DELETE", f"/sessions/{second['sessionId']}")
    await expect(rows.first).to_contain_text("TERMINATED")
    await page.get_by_role("button", name="Pause").click()
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    await console.call("DELETE", f"/sessions/{first['sessionId']}")
    await asyncio.sleep(1.5)
    assert asked == []
    await expect(rows.last).not_to_contain_text("TERMINATED")
    await page.get_by_role("button", name="Resume").click()
    await expect(rows.last).to_contain_text("TERMINATED")


async def test_rows_do_not_move_while_the_table_is_in_use(console: ConsoleService, visitor: Visitor) -> None:
    first = await console.open(leaseSeconds=600)
    capacity = {"capacityId": first["capacityId"], "leaseSeconds": 600}
    second = await console.open(**capacity)
    page = await visitor.visit(console, f"sessions?active=true&capacity={first['capacityId']}", role="reader")
    rows, button = page.locator("tbody tr"), page.get_by_role("button", name="Show")
    of_first, of_second = (rows.filter(has=page.locator(f"a[title='{each['sessionId']}']")) for each in (first, second))
    await expect(rows).to_have_count(2)
    await of_first.hover()
    before = await of_first.bounding_box()
    await console.call("DELETE", f"/sessions/{second['sessionId']}")
    third = await console.open(**capacity)
    await expect(button).to_have_text("2 changes · Show")
    assert await of_first.bounding_box() == before
    await expect(of_second).to_have_attribute("title", "No longer in this list")
    await page.mouse.move(1, 1)
    await expect(of_second).to_have_count(0)
    await expect(rows.first.locator(f"a[title='{third['sessionId']}']")).to_be_visible()
    await expect(button).to_have_count(0)

    await of_first.get_by_role("link").first.focus()
    await console.call("DELETE", f"/sessions/{first['sessionId']}")
    await expect(button).to_have_text("1 change · Show")
    assert await focused(page) == await of_first.get_by_role("link").first.inner_text()
    await button.press("Enter")
    await expect(rows).to_have_count(1)
    await expect(button).to_have_count(0)
    assert await focused(page) == "Sessions"


async def test_focus_moves_to_nearest_row_when_focused_row_is_removed(plain: ConsoleService, visitor: Visitor) -> None:
    page = await visitor.visit(plain)
    await expect(page.get_by_role("heading", level=1)).to_have_text("Overview")
    found = await page.evaluate(
        """async () => {
            const assets = document.querySelector("script[type=module]").src.replace("main.js", "");
            const { html, keyed, render } = await import(`${assets}core/template.js`);
            const place = document.createElement("div");
            place.tabIndex = -1;
            document.body.append(place);
            const row = (name) => keyed(name, html`<li><button>${name}</button></li>`);
            const show = (...names) => render(html`<ul>${names.map(row)}</ul>`, place);
            const focused = () => document.activeElement.innerText.trim();
            const seen = [];
            show("a", "b", "c");
            place.querySelectorAll("button")[1].focus();
            for (const names of [["c", "b", "a"], ["new", "c", "b"], ["new", "c"], ["x", "new"]]) {
                show(...names);
                seen.push(focused());
            }
            render("", place);
            return [...seen, document.activeElement === place];
        }"""
    )
    assert found == ["b", "b", "c", "new", True]


async def test_updates_send_at_most_one_request_a_second(plain: ConsoleService, visitor: Visitor) -> None:
    page = await visitor.visit(plain)
    await expect(page.locator(".loading")).to_have_count(0)
    await page.evaluate("performance.clearResourceTimings()")
    sent = "performance.getEntriesByType('resource').map(({startTime}) => startTime)"
    instants: list[float] = []
    while len(instants) < 4:
        await asyncio.sleep(0.2)
        instants = sorted(await page.evaluate(sent))
    assert min(later - earlier for earlier, later in pairwise(instants)) >= 990


async def test_page_shows_lost_connection_and_recovers(plain: ConsoleService, visitor: Visitor) -> None:
    page = await visitor.visit(plain, "sessions")
    rows = page.locator("tbody tr")
    await expect(rows).not_to_have_count(0)
    count = await rows.count()
    await page.context.set_offline(True)
    await expect(page.get_by_role("alert")).to_contain_text("Connection lost since", timeout=5000)
    assert await rows.count() == count
    await page.context.set_offline(False)
    await expect(page.get_by_role("alert")).to_have_count(0)
    await expect(page.locator(".live")).to_have_text("Live")


async def test_search_field_finds_the_resource_of_an_id(plain: ConsoleService, visitor: Visitor) -> None:
    session = await plain.open()
    page = await visitor.visit(plain)
    field = page.get_by_role("searchbox", name="Find an id")
    await field.fill(session["tenantObjectId"])
    await field.press("Enter")
    await expect(page).to_have_url(f"{plain.address}/sessions?tenant={session['tenantObjectId']}")
    await expect(page.locator("tbody tr")).to_have_count(1)
    await field.fill("0190b0a0-0000-7000-8000-ffffffffffff")
    await field.press("Enter")
    await expect(page.locator(".empty")).to_contain_text("No session has this id")


async def test_templates_show_values_as_text(plain: ConsoleService, visitor: Visitor) -> None:
    page = await visitor.visit(plain)
    await expect(page.get_by_role("heading", level=1)).to_have_text("Overview")
    shown = await page.evaluate(
        """async () => {
            const script = document.querySelector('script[type=module]').src;
            const { html, render } = await import(new URL('core/template.js', script));
            const bad = `"><img src=x onerror="window.harmed = 1"><script>window.harmed = 1</script>`;
            const box = document.createElement('div');
            document.body.append(box);
            const link = html`<a href="${'javascript:alert(1)'}">x</a>`;
            render(html`<p title="${bad}" class="a ${bad}">${bad} ${[html`<b>${bad}</b>`]}</p>${link}`, box);
            let refused = '';
            try {
                render(html`<p onclick="${bad}"></p>`, document.createElement('div'));
            } catch (error) {
                refused = error.message;
            }
            await new Promise((resolve) => setTimeout(resolve, 50));
            return {
                elements: box.querySelectorAll('img, script').length,
                title: box.querySelector('p').title === bad,
                text: box.querySelector('b').textContent === bad,
                href: box.querySelector('a').hasAttribute('href'),
                refused,
                harmed: window.harmed ?? null,
            };
        }"""
    )
    assert shown == {
        "elements": 0,
        "title": True,
        "text": True,
        "href": False,
        "refused": "a template must not set onclick",
        "harmed": None,
    }


async def test_sessions_are_counted_and_listed_by_deadline(plain: ConsoleService, visitor: Visitor) -> None:
    first = await plain.open(leaseSeconds=890)
    for seconds in (290, 590):
        await plain.open(leaseSeconds=seconds, capacityId=first["capacityId"])
    page = await visitor.visit(plain, f"sessions?capacity={first['capacityId']}", role="reader")
    await expect(page.get_by_role("region", name="Sessions that match")).to_contain_text("3 sessions")
    await page.get_by_role("button", name="Next to lapse").press("Enter")
    countdowns = page.locator("tbody tenure-countdown")
    await expect(countdowns.first).to_have_text(re.compile(r"^4:[1-5]\d$"))
    assert [text.partition(":")[0] for text in await countdowns.all_inner_texts()] == ["4", "9", "14"]
    assert page.url.endswith(f"?capacity={first['capacityId']}&order=lapse")


async def end_fewer(route: Route) -> None:
    """Continues a request that ends sessions, but with a limit of 25 sessions."""
    body = {**msgspec.json.decode(route.request.post_data or "{}"), "limit": 25}
    await route.continue_(post_data=msgspec.json.encode(body))


async def test_filter_by_state_is_shown_and_can_be_cleared(plain: ConsoleService, visitor: Visitor) -> None:
    """The overview links to this filter."""
    page = await visitor.visit(plain)
    await show(page, plain, "sessions?state=active", "Sessions")
    await expect(page.get_by_label("State")).to_have_value("active")
    await page.get_by_role("button", name="Clear filters").click()
    await expect(page.get_by_label("State")).to_have_value("")
    assert "state=" not in page.url


async def test_operator_ends_selected_sessions_and_everything_that_matches(
    plain: ConsoleService, visitor: Visitor
) -> None:
    """64 sessions match: more than the table shows (50), and more than one request ends (25 in this test). Each action
    adds one entry to the audit log, even if it takes several requests.
    """
    capacity = (await plain.open())["capacityId"]
    await asyncio.gather(*(plain.open(capacityId=capacity, sessionKind=2) for _ in range(63)))
    page = await visitor.visit(plain, f"sessions?capacity={capacity}", role="reader")
    await expect(page.locator("tbody tr")).to_have_count(50)
    await expect(page.get_by_role("checkbox")).to_have_count(0)
    await expect(page.get_by_role("button", name="End all that match…")).to_have_count(0)

    page = await visitor.visit(plain, f"sessions?capacity={capacity}")
    await page.route("**/sessions/end", end_fewer)
    panel = page.get_by_role("region", name="Sessions that match")
    await expect(panel).to_contain_text("64 sessions")
    boxes = page.locator("tbody").get_by_role("checkbox")
    for index in range(2):
        await boxes.nth(index).press("Space")
    await expect(page.get_by_role("region", name="Selection")).to_contain_text("2 sessions selected")
    await page.get_by_role("button", name="End selected…").press("Enter")
    dialog = page.get_by_role("dialog")
    await expect(dialog).to_contain_text("2 live sessions")
    await dialog.get_by_role("button", name="End 2 sessions").press("Enter")
    await expect(dialog).to_contain_text("Done. 2 sessions ended.")
    await page.keyboard.press("Escape")
    await expect(page.locator("tbody tr", has_text="TERMINATED")).to_have_count(2)
    await expect(page.get_by_role("region", name="Selection")).to_have_count(0)

    await page.get_by_label("Kind").select_option("2")
    await page.get_by_role("button", name="End all that match…").press("Enter")
    await expect(dialog).to_contain_text("61 live sessions")
    await expect(dialog).to_contain_text(f"kind 2, capacity {capacity}")
    button = dialog.get_by_role("button", name="End 61 sessions")
    await expect(button).to_be_disabled()
    await expect(dialog.get_by_label("Type end 61 to confirm")).to_be_focused()
    await page.keyboard.type("end 61")
    oldest = (await plain.call("GET", f"/sessions?capacity={capacity}&kind=2&active=true&order=lapse"))["sessions"][0]
    await plain.call("DELETE", f"/sessions/{oldest['sessionId']}")
    await page.keyboard.press("Enter")
    await expect(dialog).to_contain_text("Done. 60 sessions ended. 1 had ended already.", timeout=20_000)
    await dialog.get_by_role("button", name="Close").press("Enter")
    await expect(page.locator("tbody tr", has_text="TERMINATED")).to_have_count(50)
    left = await plain.call("GET", f"/sessions?capacity={capacity}&active=true")
    assert [session["sessionKind"] for session in left["sessions"]] == [1]
    entries = (await plain.call("GET", "/audit-log?limit=10"))["entries"]
    assert [(entry["target"], entry["changes"]) for entry in entries if entry["target"] == "sessions"][:2] == [
        ("sessions", 60),
        ("sessions", 2),
    ]


async def explained(console: ConsoleService, session_id: str) -> list[str]:
    """Returns the text of each fact that `tenure explain` prints, without the time of the fact."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "tenure", "explain", session_id),
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "TENURE_URL": console.origin + console.prefix, "TENURE_KEY": console.keys["reader"]},
    )
    printed, _ = await process.communicate()
    return [line.partition(")  ")[2] for line in printed.decode().splitlines()]


async def test_history_in_console_equals_output_of_explain(plain: ConsoleService, visitor: Visitor) -> None:
    session = await plain.open(leaseSeconds=600)
    path = f"/sessions/{session['sessionId']}"
    page = await visitor.visit(plain, path[1:], role="reader")
    await expect(page.get_by_role("timer")).to_have_text(re.compile(r"^(10:00|9:5\d)$"))
    # A reader cannot change anything.
    for name in ("Heartbeat", "End…", "Hold in this tab"):
        await expect(page.get_by_role("button", name=name)).to_have_count(0)
    upgraded = await plain.call("PUT", "/sessions", same_key(session, sessionKind=3))
    await expect(page.locator(".page-head")).to_contain_text("UPGRADED")
    link = page.locator(".story").get_by_role("link", name=upgraded["sessionId"][:8])
    history = await plain.call("GET", f"{path}/history")
    assert [fact["fact"] for fact in history["facts"]][-1] in {"upgradedTo", "notBilledYet"}
    texts = [
        text.removesuffix(await link.inner_text()).strip()
        for text in await page.locator(".fact-text").all_inner_texts()
    ]
    assert texts == [fact["text"] for fact in history["facts"]]
    assert await explained(plain, session["sessionId"]) == texts
    await link.click()
    await expect(page).to_have_url(f"{plain.address}/sessions/{upgraded['sessionId']}")
    await expect(page.locator(".page-head")).to_contain_text("created")


async def test_countdown_ends_at_the_deadline_and_the_end_is_recorded_later(
    plain: ConsoleService, visitor: Visitor
) -> None:
    await plain.call("POST", "/jobs/expire-sessions/pause")
    session = await plain.open(leaseSeconds=5)
    page = await visitor.visit(plain, f"sessions/{session['sessionId']}", role="reader")
    await expect(page.get_by_role("timer")).to_have_text(re.compile(r"^0:0\d$"))
    await expect(page.get_by_text("over, not yet recorded").first).to_be_visible(timeout=10_000)
    await expect(page.locator(".ending")).to_contain_text("LEASE_EXPIRED, not yet recorded", timeout=10_000)
    await plain.call("POST", "/jobs/expire-sessions/resume")
    await plain.call("POST", "/jobs/expire-sessions/run")
    await expect(page.locator(".page-head .badge")).to_have_text("LEASE_EXPIRED", timeout=15_000)


async def test_operator_renews_and_ends_a_session_by_keyboard(plain: ConsoleService, visitor: Visitor) -> None:
    session = await plain.open(leaseSeconds=600)
    page = await visitor.visit(plain, f"sessions/{session['sessionId']}")
    await tab_to(page, "Heartbeat")
    await page.keyboard.press("Enter")
    await expect(page.locator("#notices")).to_contain_text("Renewed until")
    await tab_to(page, "End…")
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("dialog")).to_contain_text("TERMINATED")
    await page.keyboard.press("Escape")
    await expect(page.get_by_role("dialog")).to_have_count(0)
    await expect(page.get_by_role("button", name="End…")).to_be_focused()
    await page.keyboard.press("Enter")
    await tab_to(page, "End session")
    await page.keyboard.press("Enter")
    await expect(page.locator(".page-head")).to_contain_text("TERMINATED")
    await expect(page.get_by_role("button", name="End…")).to_have_count(0)


async def test_tab_holds_a_session_warns_before_it_lapses_and_shows_why_it_was_lost(
    consoles: dict[str, ConsoleService], visitor: Visitor
) -> None:
    console = consoles["/a/b"]
    page = await visitor.visit(console, "open", role="client")
    await page.get_by_label("Lease in seconds").fill("6")
    await page.get_by_role("button", name="Open and hold").press("Enter")
    panel = page.get_by_role("region", name="Held in this tab")
    await expect(panel).to_contain_text("This tab sends heartbeats")
    session = page.url.rsplit("/", 1)[1]
    await expect(panel).to_contain_text(re.compile(r"[2-9] heartbeats acknowledged"))
    # The tab keeps holding the session while another page is shown.
    await page.get_by_role("navigation").get_by_role("link", name="Overview").click()
    line = page.locator(".held-line")
    await expect(line).to_contain_text("This tab holds session")
    await page.context.set_offline(True)
    await expect(line).to_contain_text("about to lapse", timeout=10_000)
    await page.context.set_offline(False)
    await expect(line).not_to_contain_text("about to lapse", timeout=10_000)
    await console.call("DELETE", f"/sessions/{session}")
    await expect(line).to_contain_text("lost session")
    await expect(line).to_contain_text("An operator ended the session, or its stream ended.")
    await line.get_by_role("link").click()
    await page.get_by_role("button", name="Open again and hold").click()
    await expect(panel).to_contain_text("This tab sends heartbeats")
    again = page.url.rsplit("/", 1)[1]
    assert again != session
    await page.get_by_role("button", name="Stop holding").click()
    await expect(panel).to_have_count(0)
    await page.get_by_role("button", name="Hold in this tab").click()
    await expect(panel).to_contain_text("This tab sends heartbeats")
    assert page.url.endswith(again)
    await page.reload()
    await expect(line).to_contain_text("until it was reloaded")
    await line.get_by_role("button", name="Hold again").click()
    await expect(panel).to_contain_text("This tab sends heartbeats")
    await expect(line).to_have_count(0)
    assert "token" not in (await page.evaluate("JSON.stringify(sessionStorage)")).lower()


async def test_console_needs_no_sign_in_while_no_key_exists(sqlite_database: Database, visitor: Visitor) -> None:
    async with serving_console(sqlite_database, "", keys=False, gateways={}) as console:
        page = await visitor.visit(console, "sessions")
        await expect(page.locator(".empty")).to_contain_text("tenure demo")
        await page.get_by_role("button", name="open · operator").click()
        await expect(page.get_by_role("dialog")).to_contain_text("no API key exists")
        await page.keyboard.press("Escape")
        await expect(page.get_by_role("button", name="open · operator")).to_be_focused()
        # The page shows the first key, and signs in with this key.
        await page.goto(f"{console.address}/keys")
        await page.get_by_role("button", name="Create a key").click()
        await page.keyboard.type("ops")
        await page.keyboard.press("Enter")
        await expect(page.get_by_role("dialog")).to_contain_text("tnr_operator_", timeout=10_000)
        await page.get_by_role("button", name="I have stored the key").click()
        await expect(page.get_by_role("table", name="API keys")).to_contain_text("you")
        assert len(await page.context.cookies()) == 1


async def test_sign_in_leads_to_the_oidc_issuer_if_there_is_one(sqlite_database: Database, visitor: Visitor) -> None:
    async with running_issuer(RSA) as issuer:
        there = {"authorization_url": f"{issuer.address}/authorize", "token_url": f"{issuer.address}/token"}
        oidc = issuer.config(client_id="console", scope="openid", **there)
        async with serving_console(sqlite_database, "/a/b", keys=False, oidc=oidc) as console:
            page = await visitor.visit(console, role=None)
            async with page.expect_request(f"{issuer.address}/authorize?*") as asked:
                await page.get_by_role("link", name="Sign in with").press("Enter")
            assert "client_id=console" in (await asked.value).url
            await visitor.close()
