"""Every setting takes effect: each changes something that an operator, a client or a receiver can observe.

The settings in CHANGES are observed on two instances: one with the defaults, and one in which all these settings are
changed. Therefore each observation must depend on its own setting only. The settings in ON_BUILT_OBJECTS are observed
on objects that are built from a configuration, and those in IN_OWN_TESTS have tests of their own.
"""

import asyncio
import re
import socket
from collections.abc import AsyncIterator, Callable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest
from structlog.testing import capture_logs

from tenure.access.code_flow import CodeFlow
from tenure.access.jwks import Fetch, FetchFailed
from tenure.access.oidc import OidcVerifier
from tenure.app import Instance, _cut_rules, _start_traces, _subscriptions
from tenure.config import Config, load
from tenure.config.profiles import PROFILES
from tenure.config.schema import SettingPath, dotted, entries_of, is_single, settings_in, variable
from tenure.domain.sessions import OpenOutcome
from tenure.domain.submissions import Contract, Envelope
from tenure.errors import ConfigurationError, Problem, Unauthenticated
from tenure.server import process, workers
from tenure.server.process import bind
from tenure.store.engines import open_store
from tenure.submissions.gateways import Gateway, gateways_of
from tenure.submissions.payloads import PayloadSources
from tenure.telemetry.events import JobStarted, LeaderAcquired, RequestAnswered, SessionOpened, Telemetry
from tests.http.client import Json, open_body
from tests.http.local import LocalService, eventually, prepare_process
from tests.support.databases import Clock
from tests.support.issuers import AUDIENCE, RSA, TENANT, Issuer, sent
from tests.support.open_requests import NOON
from tests.support.streams import STOP, Streaming, as_text, request, streaming
from tests.support.usage import session_between

MESSAGE = "x" * 2000
EXECUTOR_LEASE = Config().leases.executor_lease


def paths(kind: Any = Config, path: SettingPath = ()) -> list[SettingPath]:
    """Returns the paths of all settings, with `<name>` for names that the user chooses.

    A table of single values is one setting.
    """
    entries = entries_of(kind)
    if is_single(kind) or (entries and is_single(entries.values)):
        return [path]
    members = {"<name>": entries.values} if entries else settings_in(kind)
    return [each for name, member in members.items() for each in paths(member, (*path, name))]


# Settings that are observed on a running instance.

CHANGES: Mapping[str, str] = {
    "prefix": "/changed",
    "sessions.term_days": "1",
    "sessions.lease_seconds": "100",
    "sessions.idle_seconds": "50",
    "sessions.heartbeat_seconds": "7",
    "streams.max_per_instance": "1",
    "streams.max_message_bytes": "1000",
    "streams.handler": "discard",
    "streams.lease_seconds": "40",
    "streams.idle_seconds": "30",
    "leases.duration_seconds": "50",
    "jobs.<name>.interval_seconds": "77",
    "jobs.<name>.lock_timeout_seconds": "88",
    "jobs.<name>.paused": "true",
}
JOB = "prune"


def seconds_between(session: Json, field: str) -> float:
    start, end = (datetime.fromisoformat(session[name]) for name in ("sessionStartUtc", field))
    return (end - start).total_seconds()


async def observe_sessions(clients: Streaming) -> dict[str, object]:
    async def opened(**fields: int) -> Json:
        response = await clients.http.put("/sessions", json=open_body(**fields))
        assert response.status_code == 201, response.text
        return response.json()  # type: ignore[no-any-return]

    by_default = await opened()
    return {
        "sessions.term_days": seconds_between(by_default, "sessionEndUtc"),
        "sessions.lease_seconds": seconds_between(await opened(idleSeconds=2_592_000), "leaseExpiresAt"),
        "sessions.idle_seconds": seconds_between(await opened(leaseSeconds=86_400), "leaseExpiresAt"),
        "sessions.heartbeat_seconds": by_default["heartbeatInterval"],
    }


async def observe_streams(local: LocalService, clients: Streaming) -> dict[str, object]:
    observed: dict[str, object] = {}
    for name, other in (("lease", "idleSeconds"), ("idle", "leaseSeconds")):
        client, session = await clients.open(**{other: 86_400})
        whole = await clients.get(session["sessionId"])
        observed[f"streams.{name}_seconds"] = round(seconds_between(whole, "leaseExpiresAt"))
        await client.stop()
        await eventually(lambda: not local.instance.streams._admitted)
    client, _ = await clients.open()
    refused = await clients.connect("/sessions/stream")
    await refused.send(as_text({"type": "open", **request()}))
    observed["streams.max_per_instance"] = (await refused.receive_json())["type"]
    refused.disconnect()
    await client.send("hello")
    await client.send(STOP)
    messages, _ = await client.read_to_end()
    observed["streams.handler"] = "hello" in messages
    await eventually(lambda: not local.instance.streams._admitted)
    client, _ = await clients.open()
    await client.send(MESSAGE)
    await client.send(STOP)
    _, observed["streams.max_message_bytes"] = await client.read_to_end()
    return observed


async def observe_instance(config: Config) -> dict[str, object]:
    local = LocalService(config, Clock())
    async with local.running(), streaming(local.port, config.prefix) as clients:
        (job,) = [each for each in (await clients.http.get("/jobs")).json()["jobs"] if each["name"] == JOB]
        await eventually(lambda: local.telemetry.of(LeaderAcquired) != [])
        (lease,) = [
            each for each in (await local.http.get("/readyz")).json()["leases"] if each["name"] == EXECUTOR_LEASE
        ]
        started, ends = (datetime.fromisoformat(lease[name]) for name in ("acquiredAt", "expiresAt"))
        return {
            "prefix": (await local.http.get("/sessions")).status_code,
            "leases.duration_seconds": (ends - started).total_seconds(),
            "jobs.<name>.interval_seconds": job["intervalSeconds"],
            "jobs.<name>.lock_timeout_seconds": job["lockTimeoutSeconds"],
            "jobs.<name>.paused": job["paused"],
            **await observe_sessions(clients),
            **await observe_streams(local, clients),
        }


@pytest.fixture(scope="module")
async def observed(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[list[dict[str, object]]]:
    """Returns what is observed on an instance with the defaults, and on one with all settings in CHANGES changed."""
    folder = tmp_path_factory.mktemp("effects")
    changed = {variable_of(setting): value for setting, value in CHANGES.items()}
    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(folder)
        prepare_process(patched)
        yield [
            await observe_instance(load({"database": f"sqlite:///{folder / name}"}, environment))
            for name, environment in (("default.db", {}), ("changed.db", changed))
        ]


@pytest.mark.parametrize("setting", CHANGES)
def test_setting_has_observable_effect_on_running_service(setting: str, observed: list[dict[str, object]]) -> None:
    default, changed = observed
    assert default[setting] != changed[setting]


# Settings that are observed on objects that are built from a configuration.


def variable_of(setting: str) -> str:
    name = {"jobs": JOB, "gateways": "crm"}.get(setting.partition(".")[0], "")
    return variable(tuple(part if part != "<name>" else name for part in setting.split(".")))


def gateway(config: Config) -> Gateway:
    return gateways_of(config.gateways, PayloadSources())["crm"]


def request_headers(config: Config) -> object:
    envelope = Envelope("id", "key", b"{}", Contract((), None, (), 1.0))
    return gateway(config).headers(envelope, 0)


def started(config: Config) -> list[tuple[str, int]]:
    """Returns the address and the port of each process that `tenure serve` would start. It starts no process: the
    functions that would start one are replaced.
    """
    processes: list[tuple[str, int]] = []
    bound: list[tuple[socket.socket, int]] = []

    def bind(host: str, port: int, **options: Any) -> socket.socket:
        # Bind a free port instead of `port`, which another process of this machine may be using.
        bound.append((process.bind(host, 0, **options), port))
        return bound[-1][0]

    def start(*_: object, **__: object) -> None:
        listener, port = bound[-1]
        processes.append((listener.getsockname()[0], port))

    def spawn(supervisor: Any, *_: object) -> None:
        start()
        supervisor._signals = 1  # as if a signal had arrived: the supervisor stops at once

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(workers, "bind", bind)
        patched.setattr(workers, "announce", lambda *_: None)
        patched.setattr(workers, "run_instance", start)
        patched.setattr(workers.signal, "signal", lambda *_: None)
        patched.setattr(workers.Supervisor, "_spawn", spawn)
        workers.serve(config)
    for listener, _ in bound:
        listener.close()
    return processes


def refusal_of_instance(config: Config) -> str | None:
    try:
        Instance(config, Telemetry())
    except ConfigurationError as error:
        return str(error)
    return None


def board_interval(config: Config) -> float:
    return Instance(config, Telemetry()).ensemble._watch._refresh_seconds


def renewal_interval(config: Config) -> float:
    ensemble = Instance(config, Telemetry()).ensemble
    return ensemble._leaderships[EXECUTOR_LEASE]._renew_seconds


def readers(config: Config) -> int:
    store: Any = open_store(config.database, config.pool_size)
    return store._readers.engine.pool.size()  # type: ignore[no-any-return]


def usage_rules(config: Config) -> object:
    return _cut_rules(config, gateway(config))


ISSUER = Issuer(RSA)
OIDC = {
    "TENURE_OIDC__CLIENT_ID": "tenure",
    "TENURE_OIDC__AUTHORIZATION_URL": "https://login.example/authorize",
    "TENURE_OIDC__TOKEN_URL": "http://127.0.0.1:9/token",
    "TENURE_OIDC__ISSUER": ISSUER.name,
    "TENURE_OIDC__AUDIENCE": AUDIENCE,
    "TENURE_OIDC__JWKS_URL": "http://127.0.0.1:9/keys",
}
OIDC_CHANGES = {
    "issuer": "https://other.example",
    "audience": "api://other",
    "tenant_claim": "tenant",
    "user_claim": "user",
    "roles_claim": "groups",
    "roles": '{"client": "operator"}',
    "leeway_seconds": "0",
    "staff_tenant": TENANT,
}


SIGN_IN_CHANGES = {
    "client_id": "other",
    "client_secret": "another",
    "authorization_url": "https://other.example/authorize",
    "token_url": "http://127.0.0.1:9/other",
    "scope": "openid more",
}


def sign_in_requests(config: Config) -> list[object]:
    """Returns the URL to which a sign-in sends the browser, and the body and the URL of the token request that follows.
    Random parts are removed.
    """
    assert config.oidc is not None
    sent: list[object] = []

    async def send(body: bytes) -> bytes:
        sent.append(re.sub(rb"code_verifier=[^&]+", b"", body))
        raise FetchFailed("enough", 400)

    verifier = OidcVerifier(config.oidc, send_nothing, Telemetry(), ISSUER.clock.now)
    flow = CodeFlow(config.oidc, verifier, Telemetry(), send)
    begun = flow.begin("https://here.example/callback")
    with pytest.raises(Unauthenticated):
        asyncio.run(flow.finish("https://here.example/callback", begun.transaction, begun.transaction[:43], "c", None))
    location = re.sub(r"(state|nonce|code_challenge)=[^&]+", "", begun.location)
    return [location, *sent, config.oidc.token_url]


async def send_nothing() -> bytes:
    raise FetchFailed("not needed")


def oidc_callers(config: Config) -> list[object]:
    """Returns, for some tokens, the caller that an instance identifies, or the reason of the refusal."""
    assert config.oidc is not None
    keys = msgspec.json.encode({"keys": [RSA.as_dict()]})
    verifier = OidcVerifier(config.oidc, _returning(keys), Telemetry(), ISSUER.clock.now)
    asyncio.run(verifier._jwks.refresh())
    found: list[object] = []
    for claims in ({}, {"roles": ["operator"]}, {"exp": int(ISSUER.clock.seconds) - 10}):
        try:
            found.append(verifier.verify(sent(ISSUER.token(**claims))))
        except Problem as problem:
            found.append(problem.detail)
    return found


def _returning(body: bytes) -> Fetch:
    async def fetch() -> bytes:
        return body

    return fetch


def requested_keys(config: Config) -> list[str]:
    """The URL from which an instance fetches the keys of its issuer."""
    urls: list[str] = []

    def fetch_from(url: str) -> Fetch:
        urls.append(url)
        return _returning(b"")

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("tenure.app.fetch_from", fetch_from)
        Instance(config, Telemetry())
    return urls


def logged(config: Config) -> list[str]:
    """Returns the log lines of a job run, a new session and a request."""
    session = session_between(NOON, NOON, closed=False)
    with capture_logs() as logs:
        telemetry = workers._logged(config)
        telemetry.report(JobStarted("prune", 1))
        telemetry.report(SessionOpened(OpenOutcome.CREATED, session))
        telemetry.report(RequestAnswered("GET /sessions", 200, 0.1, "GET"))
    return [f"{line['log_level']} {line['event']}" for line in logs]


def grants_of(config: Config, path: str) -> object:
    return [route.grants for route in Instance(config, Telemetry()).pipeline.table if route.path == path]


TRACES_CHANGES = {
    "endpoint": "http://127.0.0.1:9/other",
    "headers": '{"x-token": "secret"}',
    "service_name": "seats",
    "sample_ratio": "0",
    "per_second": "1",
    "follow_callers": "false",
}


def traces_of(config: Config) -> list[object]:
    """Returns the arguments of the exporter, the parent span of a request whose caller sent a trace id, and whether
    more than 5 of 1001 requests are sampled.
    """
    telemetry, opened = Telemetry(), []

    class Recorded:
        def __init__(self, *arguments: object) -> None:
            opened.append(arguments)

        def export(self, _span: object) -> None:
            raise AssertionError("no request has ended")

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("tenure.app.Exporter", Recorded)
        _start_traces(config.traces, telemetry)
    assert telemetry.begin_trace is not None
    caller = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    sampled = [telemetry.begin_trace(given, "x") for given in (caller, *[None] * 1000)]
    return [opened, sampled[0] is not None and sampled[0].parent_id, sum(each is not None for each in sampled) > 5]


SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
BASE = {
    "TENURE_PORT": "0",
    "TENURE_GATEWAYS__CRM__URL": "http://127.0.0.1/",
    "TENURE_GATEWAYS__CRM__SECRET": SECRET,
    "TENURE_TRACES__ENDPOINT": "http://127.0.0.1:9/v1/traces",
    **OIDC,
}
ON_BUILT_OBJECTS: Mapping[str, tuple[str, Callable[[Config], object]]] = {
    "database": ("sqlite:///other.db", lambda config: open_store(config.database, 4)._readers._file._path),  # type: ignore[attr-defined]
    "host": ("127.0.0.2", lambda config: started(config)[0][0]),
    "port": ("81", lambda config: started(config)[0][1]),
    "workers": ("3", lambda config: len(started(config))),
    "pool_size": ("4", readers),
    **{f"oidc.{name}": (value, oidc_callers) for name, value in OIDC_CHANGES.items()},
    **{f"oidc.{name}": (value, sign_in_requests) for name, value in SIGN_IN_CHANGES.items()},
    "oidc.jwks_url": ("http://127.0.0.1:9/other", requested_keys),
    "access.grace_seconds": ("5", lambda config: Instance(config, Telemetry())._authenticator._grace_seconds),
    "streams.options": ('{"grammar": "x"}', refusal_of_instance),
    "leases.renew_seconds": ("5", renewal_interval),
    "leases.refresh_seconds": ("2", board_interval),
    "leases.holder": ("node-1", lambda config: Instance(config, Telemetry()).ensemble.holder == "node-1"),
    "leases.executor_lease": ("other", lambda config: Instance(config, Telemetry()).ensemble.lease_names),
    "usage.factors": ('{"1": 5}', usage_rules),
    "usage.format": ("cloudevents", usage_rules),
    "gateways.<name>.url": ("http://127.0.0.1/other", lambda config: gateway(config).url),
    "gateways.<name>.secret": ("whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD", request_headers),
    "gateways.<name>.previous_secret": ("whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD", request_headers),
    "gateways.<name>.headers": ('{"x-key": "1"}', request_headers),
    "gateways.<name>.timeout_seconds": ("9", lambda config: gateway(config).contract),
    "gateways.<name>.schedule": ("[9]", lambda config: gateway(config).contract),
    "gateways.<name>.max_attempts": ("9", lambda config: gateway(config).contract),
    "gateways.<name>.already_have": ("[208]", lambda config: gateway(config).contract),
    "gateways.<name>.concurrency": ("9", lambda config: gateway(config).concurrency),
    "logs.level": ("debug", logged),
    "logs.sessions": ("info", logged),
    "logs.access": ("true", logged),
    **{f"traces.{name}": (value, traces_of) for name, value in TRACES_CHANGES.items()},
    "metrics.public": ("true", lambda config: grants_of(config, "/metrics")),
    "gateways.<name>.events": ('["session.closed"]', lambda config: Instance(config, Telemetry()).ensemble.lease_names),
}


@pytest.mark.parametrize("setting", ON_BUILT_OBJECTS)
def test_setting_changes_built_object(setting: str, empty_folder: Path) -> None:
    del empty_folder
    value, observe = ON_BUILT_OBJECTS[setting]
    assert observe(load({}, BASE)) != observe(load({}, BASE | {variable_of(setting): value}))


def test_acquire_seconds_shortens_the_board_interval() -> None:
    slow = {"TENURE_LEASES__REFRESH_SECONDS": "10"}
    intervals = [board_interval(load({}, slow | more)) for more in ({}, {"TENURE_LEASES__ACQUIRE_SECONDS": "3"})]
    assert intervals == [10, 3]


def test_event_format_changes_contract_of_batches_and_needs_events() -> None:
    events = BASE | {"TENURE_GATEWAYS__CRM__EVENTS": '["session.opened"]'}
    cloud = {"TENURE_GATEWAYS__CRM__EVENT_FORMAT": "cloudevents"}
    formats = []
    for environment in (events, events | cloud):
        config = load({}, environment)
        formats.append(_subscriptions(config, gateways_of(config.gateways, PayloadSources()))["crm"].contract.format)
    assert formats == ["events-tenure", "events-cloudevents"]
    with pytest.raises(ConfigurationError, match=r"event_format.*requires gateways\.crm\.events"):
        load({}, BASE | cloud)


def test_listening_on_every_address_requires_api_key_issuer_or_insecure(empty_folder: Path) -> None:
    del empty_folder
    everywhere = {"TENURE_PORT": "0", "TENURE_HOST": "0.0.0.0"}
    with pytest.raises(ConfigurationError):
        started(load({}, everywhere))
    for more in ({"TENURE_INSECURE": "true"}, OIDC):
        assert started(load({}, everywhere | more))[0][0] == "0.0.0.0"


def test_start_without_usage_gateway_logs_one_warning() -> None:
    with_usages = BASE | {"TENURE_GATEWAYS__USAGES__URL": "http://127.0.0.1/"}
    for environment, expected in ((BASE, 1), (BASE | {"TENURE_WORKERS": "3"}, 1), (with_usages, 0)):
        with capture_logs() as logs:
            started(load({}, environment))
        warnings = [line for line in logs if line["event"] == "usage.no_gateway"]
        assert [line["log_level"] for line in warnings] == ["warning"] * expected


# Profiles.


def settings_of(profile: str) -> dict[SettingPath, Any]:
    def flat(tree: Any, path: SettingPath = ()) -> dict[SettingPath, Any]:
        if not isinstance(tree, Mapping):
            return {path: tree}
        return {each: value for name, inner in tree.items() for each, value in flat(inner, (*path, name)).items()}

    return flat(PROFILES[profile])


def value_at(config: Any, path: SettingPath) -> Any:
    for name in path:
        config = config[name] if isinstance(config, dict) else getattr(config, name)
    return config


OVERRIDES = {"streams.handler": "discard", "streams.max_per_instance": "7", "sessions.heartbeat_seconds": "8"}
"""The test changes each setting of a profile to 555. For these settings, it uses other values: text, or smaller
numbers."""


@pytest.mark.parametrize("profile", PROFILES)
def test_profile_sets_defaults_that_other_sources_override(profile: str, empty_folder: Path) -> None:
    for path, value in settings_of(profile).items():
        assert value_at(load({"profile": profile}, {}), path) == value, path
        other = OVERRIDES.get(dotted(path), "555")
        in_variable = load({"profile": profile}, {variable(path): other})
        assert str(value_at(in_variable, path)).removesuffix(".0") == other, path
        text = (
            f'profile = "{profile}"\n[{dotted(path[:-1])}]\n{path[-1]} = {other if other.isdigit() else repr(other)}\n'
        )
        (empty_folder / "tenure.toml").write_text(text, encoding="utf-8")
        assert value_at(load({}, {}), path) == value_at(in_variable, path), path
        (empty_folder / "tenure.toml").unlink()


def test_profile_comes_from_flag_variable_or_file_in_this_order(empty_folder: Path) -> None:
    (empty_folder / "tenure.toml").write_text('profile = "playback"', encoding="utf-8")
    assert load({}, {}).profile == "playback"
    assert load({}, {"TENURE_PROFILE": "transcription"}).profile == "transcription"
    config = load({"profile": "capacity"}, {"TENURE_PROFILE": "transcription"})
    assert config == Config()


def test_conflict_with_a_setting_of_the_profile_names_the_profile(empty_folder: Path) -> None:
    del empty_folder
    with pytest.raises(ConfigurationError, match=r"heartbeat_seconds \(from profile playback\): must be less than"):
        load({"profile": "playback", "database": "sqlite:///x.db"}, {"TENURE_SESSIONS__LEASE_SECONDS": "4"})


def test_start_logs_the_profile(empty_folder: Path) -> None:
    del empty_folder
    lines = []
    for profile in PROFILES:
        with capture_logs() as logs, bind("127.0.0.1", 0) as listener:
            telemetry = workers._logged(load({"profile": profile}, {}))
            process.announce(listener, telemetry, load({"profile": profile}, {}))
        lines += [(line["event"], line["profile"]) for line in logs]
    assert lines == [("listening", profile) for profile in PROFILES]


async def test_service_shows_the_limits_of_each_profile(empty_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prepare_process(monkeypatch)
    observed = {}
    for profile in PROFILES:
        config = load({"profile": profile, "database": f"sqlite:///{empty_folder / profile}.db"}, {})
        local = LocalService(config, Clock())
        async with local.running():
            session = await local.open()
            jobs = {each["name"]: each for each in (await local.http.get("/jobs")).json()["jobs"]}
            observed[profile] = (
                seconds_between(session, "leaseExpiresAt"),
                session["heartbeatInterval"],
                jobs["expire-sessions"]["intervalSeconds"],
                type(local.instance.streams._make_handler()).__name__,
            )
    assert observed == {
        "capacity": (30 * 86_400, None, 10, "EchoHandler"),
        "transcription": (60, 5, 30, "TranscriptionHandler"),
        "playback": (60, 5, 10, "EchoHandler"),
    }


IN_OWN_TESTS = {
    # In this module.
    "profile",
    "leases.acquire_seconds",
    "insecure",
    "gateways.<name>.event_format",
    # In tests/edge/test_limits.py.
    "http.max_connections",
    "http.max_header_bytes",
    "http.max_headers",
    "http.head_seconds",
    "http.body_seconds",
    "http.idle_seconds",
    "http.max_unfinished_bytes",
    # In tests/deployment/test_draining.py.
    "http.drain_seconds",
    # In tests/transcription/test_stream_route.py.
    "transcription.tenant",
    "transcription.capacity",
    # In tests/http/test_names.py.
    "http.json_case",
    "http.unknown_fields",
    # In tests/edge/test_origins.py.
    "http.allowed_hosts",
    "http.allowed_origins",
    # In tests/edge/test_tls.py.
    "tls_certificate",
    "tls_key",
    # In tests/edge/test_rates.py.
    "http.trusted_proxies",
    "access.requests_per_second",
    "access.requests_burst",
    "access.failures_per_minute",
    "access.failures_burst",
}


def test_every_setting_has_an_observation() -> None:
    assert {dotted(path) for path in paths()} == {*CHANGES, *ON_BUILT_OBJECTS, *IN_OWN_TESTS}


def test_section_of_a_job_that_does_not_exist_is_refused(empty_folder: Path) -> None:
    del empty_folder
    config = load({}, {"TENURE_JOBS__SEND_INVOICES__PAUSED": "true"})
    assert refusal_of_instance(config) == (
        "jobs.send-invoices: this job does not exist; the jobs are emit-usage, expire-sessions, mark-usage, "
        "prune, watch"
    )
