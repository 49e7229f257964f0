"""Builds an instance: creates its parts and connects them. No other module imports all parts."""

import asyncio
import gc
import os
import re
import socket
from collections.abc import Mapping, Sequence
from contextlib import suppress

from msgspec.structs import replace

from tenure import __version__
from tenure.access.authenticator import Authenticator
from tenure.access.code_flow import CodeFlow
from tenure.access.jwks import fetch_from
from tenure.access.oidc import OidcVerifier
from tenure.alerts.delivery import AlertPayloads
from tenure.alerts.installation import InstallationReader
from tenure.alerts.watch import Watch
from tenure.clock import ServerClock
from tenure.config import Config, SessionsConfig, TracesConfig, is_loopback
from tenure.console.route import ConsoleRoutes
from tenure.domain.alerts import ONCALL
from tenure.domain.events import EVENTS_LEASE, EventType
from tenure.domain.instances import HOST_MAX, VERSION_MAX, InstanceReport
from tenure.domain.meter import MILLIONTHS
from tenure.domain.submissions import USAGES
from tenure.domain.usage import CutRules
from tenure.ensemble import Ensemble
from tenure.errors import ConfigurationError, DatabaseUnavailable
from tenure.events.delivery import EventDelivery, EventPayloads, GatewaySubscription
from tenure.events.feed import Feed
from tenure.http.decoding import Decoding
from tenure.http.edge import Edge
from tenure.http.pages import cursor_of_event
from tenure.http.pipeline import Pipeline, Table, names_in
from tenure.http.routes.alerts import AlertRoutes
from tenure.http.routes.audit_log import AuditLogRoutes
from tenure.http.routes.capacities import CapacityRoutes
from tenure.http.routes.documents import DocumentRoutes
from tenure.http.routes.events import EventRoutes
from tenure.http.routes.history import HistoryRoutes
from tenure.http.routes.instances import InstanceRoutes
from tenure.http.routes.jobs import JobRoutes
from tenure.http.routes.keys import KeyRoutes
from tenure.http.routes.leases import LeaseRoutes
from tenure.http.routes.metrics import MetricsRoutes
from tenure.http.routes.probes import ProbeRoutes, Readiness
from tenure.http.routes.sessions import SessionRoutes
from tenure.http.routes.sign_in import SignInRoutes
from tenure.http.routes.streams import StreamRoutes
from tenure.http.routes.submissions import SubmissionRoutes
from tenure.http.routes.transcriptions import TranscriptionRoutes
from tenure.http.routes.usage import UsageRoutes
from tenure.ids import new_id
from tenure.instances.activity import ActivityRecorder
from tenure.instances.presence import Presence
from tenure.jobs.job import Job, jobs_of_applications
from tenure.jobs.prune import Prune
from tenure.leases.held import MICROSECONDS
from tenure.naming import CAMEL, Names, SnakeNames
from tenure.sessions.counts import SessionCounter
from tenure.sessions.end import Ender
from tenure.sessions.ends import SessionEnds
from tenure.sessions.expire import ExpireSessions
from tenure.sessions.heartbeat import Renewer
from tenure.sessions.open import Opener
from tenure.store.contract import Store, Topic
from tenure.store.engines import open_store
from tenure.streams.handlers import HandlerFactory, handler_factory
from tenure.streams.registry import Streams
from tenure.submissions.accept import Acceptor
from tenure.submissions.executor import GRACE_SECONDS, Executor
from tenure.submissions.gateways import Gateway, Sender, gateways_of
from tenure.submissions.payloads import PayloadSources
from tenure.telemetry.counters import Counters
from tenure.telemetry.events import (
    AccessOpen,
    AccessRefreshFailed,
    InstanceReady,
    SchemaFailed,
    SchemaMigrated,
    SchemaWaiting,
    Telemetry,
)
from tenure.telemetry.metrics import Exposition, Series
from tenure.telemetry.siblings import Siblings
from tenure.telemetry.traces import Exporter, Traces
from tenure.usage.emit import EmitUsage
from tenure.usage.mark import MarkUsage
from tenure.usage.rendering import RenderedAhead, UsagePayloads, usage_contract

MIGRATION_RETRY_SECONDS = 0.5
SCHEMA_POLL_SECONDS = 0.05
GARBAGE_THRESHOLD = 20_000


TRANSCRIPTION = "transcription"
CHECK_STREAMS_SECONDS = 1.0
"""How often the credentials of open streams are checked."""


def _stream_session_limits(config: Config) -> SessionsConfig:
    """Return the limits of sessions that streams open. These sessions always have a lease and an idle limit."""
    streams = config.streams
    return replace(config.sessions, lease_seconds=streams.lease_seconds, idle_seconds=streams.idle_seconds)


def _transcription_factory(config: Config) -> HandlerFactory | None:
    """Return the factory of transcription handlers.

    Return None if the extra `transcription` is not installed, or if its handler refuses the configured options.
    """
    options = config.streams.options if config.streams.handler == TRANSCRIPTION else {}
    try:
        return handler_factory(TRANSCRIPTION, options)
    except ConfigurationError:
        return None


def _code_flow(config: Config, verifier: OidcVerifier | None, telemetry: Telemetry) -> CodeFlow | None:
    if config.oidc is None or config.oidc.client_id is None or verifier is None:
        return None
    return CodeFlow(config.oidc, verifier, telemetry)


def _oidc_verifier(config: Config, telemetry: Telemetry, clock: ServerClock) -> OidcVerifier | None:
    if config.oidc is None:
        return None
    return OidcVerifier(config.oidc, fetch_from(config.oidc.jwks_url), telemetry, clock.now_seconds)


def _start_traces(config: TracesConfig, telemetry: Telemetry) -> Exporter | None:
    if config.endpoint is None:
        return None
    exporter = Exporter(config.endpoint, config.headers, config.service_name, __version__, telemetry)
    traces = Traces(exporter.export, config.sample_ratio, config.per_second, follow_callers=config.follow_callers)
    traces.subscribe_to(telemetry)
    return exporter


def _decoding(config: Config, snake_names: Names) -> Decoding:
    names = snake_names if config.http.json_case == "snake" else CAMEL
    return Decoding(names, ignores_unknown=config.http.unknown_fields == "ignore")


def _holder(config: Config, siblings: Siblings) -> str | None:
    """Return the configured name of this process as a holder of leases, made unique by the slot if there are several
    workers. Return None if no name is configured.
    """
    holder = config.leases.holder
    return holder if holder is None or config.workers == 1 else f"{holder}-{siblings.slot}"


def _report_of(config: Config, holder: str, worker: int) -> InstanceReport:
    # A configured holder name stays the same across restarts. The name of an instance must be unique, so append a
    # random part.
    instance = holder if config.leases.holder is None else f"{holder}-{new_id()[-8:]}"
    host = re.sub(r"[^!-~]", "_", socket.gethostname())[:HOST_MAX]
    return InstanceReport(
        instance=instance,
        holder=holder,
        host=host,
        pid=os.getpid(),
        worker=worker,
        version=__version__[:VERSION_MAX],
        executor_lease=config.leases.executor_lease,
    )


def _settle_memory() -> None:
    """Exclude the objects created at startup from garbage collection.

    These objects are used until the process ends, so scanning them would free nothing. Without these scans, the process
    uses two per cent less CPU time.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(GARBAGE_THRESHOLD)


def _cut_rules(config: Config, gateway: Gateway | None) -> CutRules:
    by_kind = config.usage.factors
    first, second, third = (int(factor * MILLIONTHS) for factor in (by_kind["1"], by_kind["2"], by_kind["3"]))
    interval_seconds = config.job("emit-usage").interval_seconds or EmitUsage.interval_seconds
    contract = None if gateway is None else usage_contract(gateway.contract, config.usage.format)
    return CutRules(round(interval_seconds * MICROSECONDS), (first, second, third), contract)


def _payload_sources(store: Store, telemetry: Telemetry) -> tuple[PayloadSources, RenderedAhead]:
    sources, ahead = PayloadSources(), RenderedAhead()
    sources.register(UsagePayloads(store, ahead, telemetry))
    sources.register(AlertPayloads(store))
    sources.register(EventPayloads(store))
    return sources, ahead


def _subscriptions(config: Config, gateways: Mapping[str, Gateway]) -> Mapping[str, GatewaySubscription]:
    return {
        name: GatewaySubscription(gateways[name].contract, list(map(EventType, given.events)), given.event_format)
        for name, given in config.gateways.items()
        if given.events
    }


def _add_jobs(ensemble: Ensemble, config: Config, built_in: Mapping[str, Job]) -> None:
    jobs = {**jobs_of_applications(), **built_in}
    for name in sorted(config.jobs.keys() - jobs.keys()):
        raise ConfigurationError(f"jobs.{name}: this job does not exist; the jobs are {', '.join(sorted(jobs))}")
    for name, job in jobs.items():
        given = config.job(name)
        ensemble.add_job(
            name,
            job.run,
            interval_seconds=given.interval_seconds or job.interval_seconds,
            lock_timeout_seconds=given.lock_timeout_seconds,
            paused=given.paused,
        )


async def _cancel(tasks: Sequence[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


class Instance:
    """One running service process. It responds to requests at once, but is ready only after migrating the schema."""

    def __init__(self, config: Config, telemetry: Telemetry, siblings: Siblings | None = None) -> None:
        make_handler = handler_factory(config.streams.handler, config.streams.options)
        self._telemetry = telemetry
        # Start traces first: when the other parts are created, they check whether traces are on.
        self._exporter = _start_traces(config.traces, telemetry)
        self._host = config.host
        self._siblings = Siblings() if siblings is None else siblings
        self._store = open_store(config.database, config.pool_size, telemetry=telemetry)
        counters = Counters(telemetry, self._siblings)
        counts = SessionCounter(self._store, telemetry)
        ends = SessionEnds(telemetry)
        opener = Opener(self._store, config.sessions, ends, telemetry)
        stream_opener = Opener(self._store, _stream_session_limits(config), ends, telemetry)
        renewer, ender = Renewer(self._store, ends, telemetry), Ender(self._store, ends, telemetry)
        self.streams = Streams(self._store, config.streams, config.sessions, make_handler, ends, telemetry)
        self._store.listen_for_ends(ends.learn, self.streams.check_sessions)
        self.ensemble = Ensemble(
            self._store, holder=_holder(config, self._siblings), timing=config.leases, telemetry=telemetry
        )
        sources, ahead = _payload_sources(self._store, telemetry)
        gateways = gateways_of(config.gateways, sources)
        self._sender = Sender(telemetry)
        executor = Executor(self._store, gateways, sources, self._sender, config.leases.refresh_seconds, telemetry)
        self._store.listen(Topic.SUBMISSIONS, executor.hint)
        self.ensemble.lead(config.leases.executor_lease, executor.work, grace_seconds=GRACE_SECONDS)
        subscriptions = _subscriptions(config, gateways)
        if subscriptions:
            delivery = EventDelivery(self._store, subscriptions, executor.hint, telemetry)
            self.ensemble.lead(EVENTS_LEASE, delivery.work)
        self.feed = Feed(self._store, cursor_of_event, telemetry)
        acceptor = Acceptor(self._store, gateways, executor, telemetry)
        rules = _cut_rules(config, gateways.get(USAGES))
        oncall = gateways[ONCALL].contract if ONCALL in gateways else None
        _add_jobs(
            self.ensemble,
            config,
            {
                "expire-sessions": ExpireSessions(self._store, ends),
                "emit-usage": EmitUsage(
                    self._store, rules, executor.hint, ahead, lambda: executor.is_working, telemetry
                ),
                "mark-usage": MarkUsage(self._store, telemetry),
                "prune": Prune(self._store),
                "watch": Watch(self._store, self._lease_names, oncall, executor.hint, telemetry),
            },
        )
        self._installation = InstallationReader(self._store, self._lease_names, list(gateways), telemetry)
        counters.expect(jobs=self.ensemble.jobs.job_names, leases=self.ensemble.lease_names, gateways=list(gateways))
        counters.add_gauges(self._gauges)
        counters.add_gauges(self._installation.series)
        clock = ServerClock()
        self._authenticator = Authenticator(
            self._store,
            telemetry,
            config.access.grace_seconds,
            clock,
            verifier := _oidc_verifier(config, telemetry, clock),
        )
        report = _report_of(config, self.ensemble.holder, self._siblings.slot)
        self._presence, self._activity = (
            Presence(self._store, report, telemetry),
            ActivityRecorder(self._store, report.instance, counters.activity, clock, telemetry),
        )
        token_signer = self._authenticator.token_signer
        self._store.listen(Topic.KEYS, self._authenticator.wake)
        self.readiness = Readiness(self._store, self.ensemble, config.leases.executor_lease)
        snake_names = SnakeNames()
        decoding = _decoding(config, snake_names)
        edge = Edge(config.http, config.host, telemetry, config.access, snake_names=snake_names)
        table: Table = [
            *SessionRoutes(self._store, opener, renewer, ender, counts, counters, config.prefix, token_signer).routes(),
            *HistoryRoutes(self._store, config.prefix).routes(),
            *CapacityRoutes(self._store, config.prefix).routes(),
            *StreamRoutes(self.streams, stream_opener, token_signer, decoding).routes(),
            *TranscriptionRoutes(
                self.streams, stream_opener, renewer, ends, _transcription_factory(config), config.transcription
            ).routes(),
            *SubmissionRoutes(self._store, acceptor, config.prefix).routes(),
            *UsageRoutes(self._store, rules, executor.hint, telemetry, config.prefix).routes(),
            *LeaseRoutes(self._store, config.prefix).routes(),
            *JobRoutes(self._store, config.prefix).routes(),
            *InstanceRoutes(self._store, config.prefix).routes(),
            *SignInRoutes(
                self._authenticator, _code_flow(config, verifier, telemetry), edge.count_request, config.prefix
            ).routes(),
            *KeyRoutes(self._store, config.prefix, self._authenticator.reread).routes(),
            *AuditLogRoutes(self._store, config.prefix).routes(),
            *AlertRoutes(self._store, config.prefix).routes(),
            *MetricsRoutes(Exposition(self._siblings), public=config.metrics.public).routes(),
            *EventRoutes(self.feed).routes(),
            *ProbeRoutes(counts, self.readiness).routes(),
        ]
        snake_names.learn(names_in(table))
        table = [*table, *DocumentRoutes(table, config.prefix).routes(), *ConsoleRoutes(config.prefix).routes()]
        self.pipeline = Pipeline(table, config.prefix, self._authenticator.identify, edge, telemetry, decoding)
        self._starting: asyncio.Task[None] | None = None
        self._background: list[asyncio.Task[None]] = []

    def start(self) -> asyncio.Task[None]:
        """Return a task that ends when the instance is ready. It raises `ConfigurationError` if a setting is wrong."""
        self._starting = asyncio.create_task(self._start())
        # Read the keys from the start, and not only after the migration: requests get 503 until the keys are read.
        self._background.append(asyncio.create_task(self._authenticate()))
        self._background.append(asyncio.create_task(self._check_streams()))
        return self._starting

    async def stop(self) -> None:
        # Cancel the start first, so that it does not start parts that are stopped below.
        await _cancel([self._starting] if self._starting is not None else [])
        await asyncio.gather(self.stop_leading(), self.streams.stop(), self.feed.stop())
        await _cancel(self._background)
        if self.readiness.started:
            await asyncio.gather(self._presence.stop(), self._activity.stop())
        await self._authenticator.save_last_uses()
        await self._sender.close()
        await self._siblings.stop()
        await self._store.close()
        if self._exporter is not None:
            await asyncio.to_thread(self._exporter.close)

    async def stop_leading(self) -> None:
        """Releases all leases and job locks, so that another instance takes over."""
        await self.ensemble.stop()

    async def _authenticate(self) -> None:
        """Keeps the API keys up to date. On the first start with a new database, it waits until the tables exist,
        because a warning about missing tables would alarm new users.
        """
        with suppress(DatabaseUnavailable):
            while not self.readiness.started:
                if await self._store.schema_revision() is not None:
                    break
                await asyncio.sleep(SCHEMA_POLL_SECONDS)
        await self._authenticator.run()

    async def _start(self) -> None:
        """Retry until the database is available, so that Tenure and the database can be started in any order."""
        await self._siblings.start()
        while True:
            try:
                for revision in await self._store.migrate():
                    self._telemetry.report(SchemaMigrated(revision))
                # Load the keys before the instance is ready: without them, every request that needs a caller gets 503.
                # If they cannot be read, `/readyz` reports why.
                with suppress(DatabaseUnavailable):
                    await self._authenticator.load()
                # Before leading, check that no other instance uses another name for the executor lease. If the database
                # is unavailable, skip this check: usually no instance can acquire a lease then either.
                with suppress(DatabaseUnavailable):
                    await self._presence.start()
                await self.ensemble.start()
            except ConfigurationError:
                raise
            except DatabaseUnavailable as error:
                self.readiness.waiting_for = error.detail
                self._telemetry.report(SchemaWaiting(error.detail))
                await asyncio.sleep(MIGRATION_RETRY_SECONDS)
            except Exception as error:  # noqa: BLE001 - reported and retried
                self._telemetry.report(SchemaFailed(error))
                await asyncio.sleep(MIGRATION_RETRY_SECONDS * 10)
            else:
                _settle_memory()
                self.readiness.started = True
                self._background.append(asyncio.create_task(self.streams.keep_alive()))
                self._background.append(asyncio.create_task(self._presence.run()))
                self._background.append(asyncio.create_task(self._activity.run()))
                if self._siblings.is_first:
                    self._background.append(asyncio.create_task(self._installation.run()))
                self._telemetry.report(InstanceReady())
                self._report_open_access()
                return

    def _lease_names(self) -> Sequence[str]:
        return self.ensemble.lease_names

    def _gauges(self) -> Series:
        """The gauges that need no database query."""
        return {
            "tenure_leader": {(name,): int(self.ensemble.trusts(name)) for name in self.ensemble.lease_names},
            "tenure_streams_open": {(): self.streams.open_count},
        }

    async def _check_streams(self) -> None:
        while True:
            await asyncio.sleep(CHECK_STREAMS_SECONDS)
            try:
                await self.pipeline.check_open_streams()
            except Exception as error:  # noqa: BLE001 - reported; the loop must continue with the next check
                self._telemetry.report(AccessRefreshFailed(error))

    def _report_open_access(self) -> None:
        if self._authenticator.is_open and self._siblings.is_first:
            self._telemetry.report(AccessOpen("this machine" if is_loopback(self._host) else "every client"))
