"""`GET /sessions/{sessionId}/history`: the facts as JSON, pages, and what each caller sees."""

import base64
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from tenure.config import JOBS, JobConfig
from tenure.domain.history import FactName
from tenure.domain.keys import Role, new_api_key
from tenure.domain.meter import decimal_text
from tenure.http.routes.history import FactAnswer, fact_answer
from tests.http.client import Json
from tests.http.local import LocalService
from tests.support.databases import Database
from tests.support.histories import end_in_every_way, expected_facts, read_facts
from tests.support.keys import create_key
from tests.support.leases import all_tables
from tests.support.open_requests import some_id
from tests.support.sessions import read_session
from tests.support.submissions import executor_fence
from tests.support.usage import install, minute

API = (Path(__file__).parents[2] / "docs" / "api.md").read_text(encoding="utf-8")
SECTION = API.partition("\n## GET /sessions/{sessionId}/history\n")[2].partition("\n## ")[0]


@asynccontextmanager
async def serving(database: Database) -> AsyncIterator[LocalService]:
    """An instance on a database that was installed at noon. The jobs of the instance are paused."""
    await database.clock.set(minute(0))
    await install(database, minute(0))
    await executor_fence(database.store)
    jobs = {name: JobConfig(paused=True) for name in JOBS}
    async with LocalService.on(database, "usages", jobs=jobs).running() as service:
        yield service


async def pages(service: LocalService, session_id: str, key: str = "", **query: Any) -> list[Json]:
    """Reads all pages of a history by following their links."""
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    response = await service.http.get(f"/sessions/{session_id}/history", params=query, headers=headers)
    found = [_body(response)]
    while "next" in response.links:
        response = await service.http.get(response.links["next"]["url"], headers=headers)
        found.append(_body(response))
    return found


def _body(response: httpx.Response) -> Json:
    assert response.status_code == 200, response.text
    body: Json = response.json()
    assert set(body) == {"session", "facts", "count", "nextCursor"}
    assert body["count"] == len(body["facts"])
    assert (body["nextCursor"] is not None) == ("next" in response.links)
    return body


def facts_in(found: Sequence[Json]) -> list[Json]:
    return [fact for page in found for fact in page["facts"]]


async def test_history_returns_the_facts_of_the_store_on_any_number_of_pages(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(database) as service:
        ids = await end_in_every_way(database)
        for name, session_id in ids.items():
            expected = msgspec.json.encode([fact_answer(fact) for fact in await read_facts(database, session_id)])
            whole = await pages(service, session_id)
            assert facts_in(whole) == msgspec.json.decode(expected), name
            assert whole[0]["session"] == await service.get(session_id)
            in_pages = await pages(service, session_id, limit=2)
            assert facts_in(in_pages) == facts_in(whole), name
            assert all(page["count"] == 2 for page in in_pages[:-1])
        # A page also ends where a section of the history ends (`domain/history.py`). Shorter sections make more pages.
        monkeypatch.setattr("tenure.store.reads.history.RUNS_MAX", 2)
        session_id = ids["live"]
        whole = facts_in(await pages(service, session_id))
        for limit in (1, 3, 500):
            assert facts_in(await pages(service, session_id, limit=limit)) == whole


async def test_history_adds_up_to_the_usage_of_the_session(database: Database) -> None:
    async with serving(database) as service:
        ids = await end_in_every_way(database)
        tables = await all_tables(database)
        for name in ("live", "LEASE_EXPIRED", "closing"):
            text = (await service.http.get(f"/sessions/{ids[name]}/history")).text
            amounts = re.findall(r'"usage":([0-9.]+)', text)
            expected = sum(expected_facts(tables, ids[name], minute(11, 30)).windows.values())
            assert sum(round(float(amount) * 1_000_000) for amount in amounts) == expected
            assert all(decimal_text(round(float(amount) * 1_000_000)) == amount for amount in amounts)


async def test_callers_see_the_facts_of_their_role_and_tenant(database: Database) -> None:
    async with serving(database) as service:
        ids = await end_in_every_way(database)
        session = await read_session(database, ids["TERMINATED"])
        keys = {
            (role, tenant): new_api_key(role) for role in Role for tenant in (None, session.tenant_object_id, some_id())
        }
        for number, ((_, tenant), key) in enumerate(keys.items()):
            await create_key(database.store, key, name=f"key {number}", tenant_object_id=tenant)
        await service.instance._authenticator.refresh()
        for (role, tenant), key in keys.items():
            if tenant not in (None, session.tenant_object_id):
                headers = {"Authorization": f"Bearer {key.text}"}
                response = await service.http.get(f"/sessions/{session.session_id}/history", headers=headers)
                assert response.status_code == 404
                continue
            facts = facts_in(await pages(service, session.session_id, key.text))
            names = {fact["fact"] for fact in facts}
            (ended,) = [fact for fact in facts if fact["fact"] == "ended"]
            sees_all = tenant is None and role is not Role.CLIENT
            assert ("name" in ended, "delivered" in names) == (sees_all, sees_all)
            assert ("billed" in names) == (role is not Role.CLIENT)
            assert any("delivery" in fact for fact in facts) == sees_all


async def test_unknown_session_and_wrong_queries_are_refused(any_local: LocalService) -> None:
    for session_id in (some_id(), "nonsense"):
        response = await any_local.http.get(f"/sessions/{session_id}/history")
        assert (response.status_code, response.json()["code"]) == (404, "NOT_FOUND")
    opened = await any_local.open()
    path = f"/sessions/{opened['sessionId']}/history"
    forged = [base64.urlsafe_b64encode(text).rstrip(b"=").decode() for text in FORGED]
    for query in ({"limit": "0"}, {"limit": "501"}, {"x": "1"}, *({"cursor": cursor} for cursor in ("!", *forged))):
        response = await any_local.http.get(path, params=query)
        assert response.status_code == 400, query


FORGED = (b"x", b"-1", b"1 2", b"1 2 3 4 5 6", b"0 99999999999999999999 1 1 1", b"99999999999999999999", b"1 x 1 1 1")


def test_every_fact_and_field_is_documented() -> None:
    rows = re.findall(r"^\| (`.*?) \|.*\| (.*) \|$", SECTION, re.MULTILINE)
    names = {name for row, _ in rows for name in re.findall(r"`(\w+)`", row)}
    assert names - {"fact"} == {name.value for name in FactName}
    fields = {field.encode_name for field in msgspec.structs.fields(FactAnswer)} - {"at", "fact", "text"}
    assert {field for field in fields if f"`{field}`" not in SECTION} == set()
    (example,) = re.findall(r"```json\n(.*?)```", SECTION, re.DOTALL)
    assert msgspec.json.decode(example, type=FactAnswer).fact is FactName.ENDED
