"""Builds an instance: creates its parts and connects them. No other module imports all of them."""

import asyncio
import gc
from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from tenure.access.caller import identify_as_anonymous
from tenure.config import JOBS, Config, SessionsConfig
from tenure.domain.meter import MILLIONTHS
from tenure.domain.submissions import USAGES
from tenure.domain.usage import CutRules
from tenure.ensemble import Ensemble
from tenure.errors import ConfigurationError, DatabaseUnavailable
from tenure.http.pipeline import Pipeline, Table
from tenure.http.routes.capacities import CapacityRoutes
from tenure.http.routes.documents import DocumentRoutes
from tenure.http.routes.jobs import JobRoutes
from tenure.http.routes.leases import LeaseRoutes
from tenure.http.routes.probes import ProbeRoutes, Readiness
from tenure.http.routes.sessions import SessionRoutes
from tenure.http.routes.streams import StreamRoutes
from tenure.http.routes.submissions import SubmissionRoutes
from tenure.http.routes.transcriptions import TranscriptionRoutes
from tenure.http.routes.usage import UsageRoutes
from tenure.jobs.job import Job, jobs_of_applications
from tenure.jobs.prune import Prune
from tenure.leases.held import MICROSECONDS
from tenure.sessions.counts import CachedCounts
from tenure.sessions.end import Ender
from tenure.sessions.expire import ExpireSessions
from tenure.sessions.heartbeat import Renewer
from tenure.sessions.open import Opener
from tenure.store.contract import Topic
from tenure.store.engines import open_store
from tenure.streams.handlers import HandlerFactory, handler_factory
from tenure.streams.registry import Streams
from tenure.submissions.accept import Acceptor
from tenure.submissions.executor import GRACE_SECONDS, LEASE, Executor
from tenure.submissions.gateways import Gateway, Sender, gateways_of
from tenure.submissions.payloads import PayloadSources
from tenure.telemetry.counters import Counters
from tenure.telemetry.events import (
    InstanceReady,
    JobUnknown,
    SchemaFailed,
    SchemaMigrated,
    SchemaWaiting,
    Telemetry,
)
from tenure.usage.emit import EmitUsage
from tenure.usage.rendering import UsagePayloads, usage_contract

MIGRATION_RETRY_SECONDS = 0.5
GARBAGE_THRESHOLD = 20_000


TRANSCRIPTION = "transcription"


def streaming(config: Config) -> SessionsConfig:
    """Return the limits of sessions that streams open. Such a session always has a lease and an idle limit."""
    streams = config.streams
    return replace(config.sessions, lease_seconds=streams.lease_seconds, idle_seconds=streams.idle_seconds)


def _transcription_factory(config: Config) -> HandlerFactory | None:
    """Return None if the extra `transcription` is not installed, or if its handler refuses its options."""
    options = config.streams.options if config.streams.handler == TRANSCRIPTION else {}
    try:
        return handler_factory(TRANSCRIPTION, options)
    except ConfigurationError:
        return None


def _settle_memory() -> None:
    """Exclude the objects made at startup from garbage collection.

    They are never garbage, and the exclusion saves two per cent of the time.
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


def _add_jobs(ensemble: Ensemble, config: Config, built_in: Mapping[str, Job], telemetry: Telemetry) -> None:
    jobs = {**jobs_of_applications(), **built_in}
    for name, job in jobs.items():
        given = config.job(name)
        ensemble.add_job(
            name,
            job.run,
            interval_seconds=given.interval_seconds or job.interval_seconds,
            lock_timeout_seconds=given.lock_timeout_seconds,
            paused=given.paused,
        )
    for name in config.jobs.keys() - jobs.keys() - JOBS.keys():
        telemetry.report(JobUnknown(name))


async def _cancel(tasks: Sequence[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


class Instance:
    """One running service process. Its pipeline answers from the start; the instance is ready after the migration."""

    def __init__(self, config: Config, telemetry: Telemetry) -> None:
        make_handler = handler_factory(config.streams.handler, config.streams.options)
        self._telemetry = telemetry
        self._store = open_store(config.database, config.pool_size, telemetry=telemetry)
        counters = Counters(telemetry)
        counts = CachedCounts(self._store, telemetry)
        opener = Opener(self._store, config.sessions, telemetry)
        stream_opener = Opener(self._store, streaming(config), telemetry)
        renewer, ender = Renewer(self._store, telemetry), Ender(self._store, telemetry)
        self.streams = Streams(self._store, config.streams, config.sessions, make_handler, telemetry)
        self.ensemble = Ensemble(self._store, timing=config.leases, telemetry=telemetry)
        sources = PayloadSources()
        sources.register(UsagePayloads(self._store))
        gateways = gateways_of(config.gateways, sources)
        self._sender = Sender()
        executor = Executor(self._store, gateways, sources, self._sender, config.leases.refresh_seconds, telemetry)
        self._store.listen(Topic.SUBMISSIONS, executor.hint)
        self.ensemble.lead(LEASE, executor.work, grace_seconds=GRACE_SECONDS)
        acceptor = Acceptor(self._store, gateways, executor, telemetry)
        rules = _cut_rules(config, gateways.get(USAGES))
        _add_jobs(
            self.ensemble,
            config,
            {
                "expire-sessions": ExpireSessions(self._store, telemetry),
                "emit-usage": EmitUsage(self._store, rules, executor.hint, telemetry),
                "prune": Prune(self._store),
            },
            telemetry,
        )
        self.readiness = Readiness(self._store, self.ensemble)
        table: Table = [
            *SessionRoutes(self._store, opener, renewer, ender, counts, counters, config.prefix).routes(),
            *CapacityRoutes(self._store, config.prefix).routes(),
            *StreamRoutes(self.streams, stream_opener).routes(),
            *TranscriptionRoutes(self.streams, stream_opener, renewer, _transcription_factory(config)).routes(),
            *SubmissionRoutes(self._store, acceptor, config.prefix).routes(),
            *UsageRoutes(self._store, rules.factors, config.prefix).routes(),
            *LeaseRoutes(self._store, config.prefix).routes(),
            *JobRoutes(self._store, config.prefix).routes(),
            *ProbeRoutes(counts, self.readiness).routes(),
        ]
        documents = DocumentRoutes(table, config.prefix).routes()
        self.pipeline = Pipeline([*table, *documents], config.prefix, identify_as_anonymous, telemetry)
        self._starting: asyncio.Task[None] | None = None
        self._background: list[asyncio.Task[None]] = []

    def start(self) -> asyncio.Task[None]:
        """Return a task that ends when the instance is ready. It raises `ConfigurationError` if a setting is wrong."""
        self._starting = asyncio.create_task(self._start())
        return self._starting

    async def stop(self) -> None:
        # Cancel the start first, so that it does not start parts that are stopped below.
        await _cancel([self._starting] if self._starting is not None else [])
        await asyncio.gather(self.stop_leading(), self.streams.stop())
        await _cancel(self._background)
        await self._sender.close()
        await self._store.close()

    async def stop_leading(self) -> None:
        """Releases all leases and job locks, so that another instance takes over."""
        await self.ensemble.stop()

    async def _start(self) -> None:
        """Retry until the database is available, so that Tenure and the database can be started in any order."""
        while True:
            try:
                for revision in await self._store.migrate():
                    self._telemetry.report(SchemaMigrated(revision))
                await self.ensemble.start()
            except ConfigurationError:
                raise
            except DatabaseUnavailable as error:
                self._telemetry.report(SchemaWaiting(error.detail))
                await asyncio.sleep(MIGRATION_RETRY_SECONDS)
            except Exception as error:  # noqa: BLE001 - reported and retried
                self._telemetry.report(SchemaFailed(error))
                await asyncio.sleep(MIGRATION_RETRY_SECONDS * 10)
            else:
                _settle_memory()
                self.readiness.started = True
                self._background.append(asyncio.create_task(self.streams.keep_alive()))
                self._telemetry.report(InstanceReady())
                return
