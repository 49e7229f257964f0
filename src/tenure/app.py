"""Builds an instance: the only module that knows all the others."""

import asyncio
import gc
from collections.abc import Mapping, Sequence

import structlog
from msgspec.structs import replace

from tenure.config import JOBS, Config, SessionsConfig
from tenure.ensemble import Ensemble
from tenure.errors import ConfigurationError, DatabaseUnavailable
from tenure.http.capacities import CapacityRoutes
from tenure.http.jobs import JobRoutes
from tenure.http.leases import LeaseRoutes
from tenure.http.openapi import DocumentRoutes
from tenure.http.operations import OperationRoutes
from tenure.http.routing import Router
from tenure.http.sessions import SessionRoutes
from tenure.http.streams import StreamRoutes
from tenure.http.submissions import SubmissionRoutes
from tenure.http.transcriptions import TranscriptionRoutes
from tenure.http.usage import UsageRoutes
from tenure.jobs.emit_usage import EmitUsage
from tenure.jobs.expire_sessions import ExpireSessions
from tenure.jobs.jobs import Job, jobs_of_applications
from tenure.jobs.prune import Prune
from tenure.leases.held import MICROSECONDS
from tenure.meter import MILLIONTHS
from tenure.model.submissions import USAGES
from tenure.model.usage import CutRules
from tenure.readiness import Readiness
from tenure.sessions.counters import Counters
from tenure.sessions.opening import Opener
from tenure.sessions.sessions import Sessions
from tenure.store.engines import open_store
from tenure.store.store import Topic
from tenure.streams.handlers import HandlerFactory, handler_factory
from tenure.streams.streams import Streams
from tenure.submissions.acceptance import Acceptor
from tenure.submissions.executor import GRACE_SECONDS, LEASE, Executor
from tenure.submissions.gateways import Gateway, gateways_of
from tenure.submissions.sending import Sender

log = structlog.get_logger()

MIGRATION_RETRY_SECONDS = 0.5
GARBAGE_THRESHOLD = 20_000


TRANSCRIPTION = "transcription"


def streaming(config: Config) -> SessionsConfig:
    """The limits of sessions that are opened by a stream: such a session always has a lease and an idle limit."""
    streams = config.streams
    return replace(config.sessions, lease_seconds=streams.lease_seconds, idle_seconds=streams.idle_seconds)


def _transcription_factory(config: Config) -> HandlerFactory | None:
    """None where the extra is not installed, or set up in a way that it does not take."""
    options = config.streams.options if config.streams.handler == TRANSCRIPTION else {}
    try:
        return handler_factory(TRANSCRIPTION, options)
    except ConfigurationError:
        return None


def _settle_memory() -> None:
    """What is there after the start stays: looking through it for garbage again and again costs two per cent."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(GARBAGE_THRESHOLD)


def _cut_rules(config: Config, gateway: Gateway | None) -> CutRules:
    by_kind = config.usage.factors
    first, second, third = (int(factor * MILLIONTHS) for factor in (by_kind["1"], by_kind["2"], by_kind["3"]))
    interval_seconds = config.job("emit-usage").interval_seconds or EmitUsage.interval_seconds
    contract = None if gateway is None else gateway.usage_contract(config.usage.format)
    return CutRules(round(interval_seconds * MICROSECONDS), (first, second, third), contract)


def _add_jobs(ensemble: Ensemble, config: Config, built_in: Mapping[str, Job]) -> None:
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
        log.warning("job.unknown", job=name)


async def _cancel(tasks: Sequence[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


class Instance:
    """One running service process. Its router answers at once; it is ready once the schema is."""

    def __init__(self, config: Config) -> None:
        make_handler = handler_factory(config.streams.handler, config.streams.options)
        self._store = open_store(config.database, config.pool_size)
        counters = Counters()
        self.streams = Streams(self._store, config.streams, config.sessions, make_handler, counters)
        stream_opener = Opener(self._store, streaming(config), counters)
        self.stream_routes = StreamRoutes(self.streams, stream_opener, config.prefix)
        sessions = Sessions(self._store, Opener(self._store, config.sessions, counters), counters)
        self.ensemble = Ensemble(self._store, timing=config.leases)
        gateways = gateways_of(config.gateways)
        self._sender = Sender()
        executor = Executor(self._store, gateways, self._sender, config.leases.refresh_seconds)
        self._store.listen(Topic.SUBMISSIONS, executor.hint)
        self.ensemble.lead(LEASE, executor.work, grace_seconds=GRACE_SECONDS)
        acceptor = Acceptor(self._store, gateways, executor)
        rules = _cut_rules(config, gateways.get(USAGES))
        _add_jobs(
            self.ensemble,
            config,
            {
                "expire-sessions": ExpireSessions(self._store, counters),
                "emit-usage": EmitUsage(self._store, rules, executor.hint),
                "prune": Prune(self._store),
            },
        )
        self.readiness = Readiness(self._store, self.ensemble)
        routes = [
            *SessionRoutes(sessions, config.prefix).routes(),
            *CapacityRoutes(self._store, config.prefix).routes(),
            *TranscriptionRoutes(self.streams, stream_opener, sessions.keeper, _transcription_factory(config)).routes(),
            *SubmissionRoutes(self._store, acceptor, config.prefix).routes(),
            *UsageRoutes(self._store, rules.factors, config.prefix).routes(),
            *LeaseRoutes(self._store, config.prefix).routes(),
            *JobRoutes(self._store, config.prefix).routes(),
            *OperationRoutes(sessions, self.readiness).routes(),
        ]
        self.router = Router([*routes, *DocumentRoutes(routes, config.prefix).routes()], config.prefix)
        self._starting: asyncio.Task[None] | None = None
        self._background: list[asyncio.Task[None]] = []

    def start(self) -> asyncio.Task[None]:
        """Ends once the instance is ready; raises if a setting turns out to be wrong."""
        self._starting = asyncio.create_task(self._start())
        return self._starting

    async def stop(self) -> None:
        # First of all it must not go on to start what is being stopped here.
        await _cancel([self._starting] if self._starting is not None else [])
        await asyncio.gather(self.give_up(), self.streams.stop())
        await _cancel(self._background)
        await self._sender.close()
        await self._store.close()

    async def give_up(self) -> None:
        """What only one instance may do, another one is to do from now on."""
        await self.ensemble.stop()

    async def _start(self) -> None:
        """Waits for a database that is not there yet: whoever starts both need not mind the order."""
        while True:
            try:
                for revision in await self._store.migrate():
                    log.info("schema.migrated", revision=revision)
                await self.ensemble.start()
            except ConfigurationError:
                raise
            except DatabaseUnavailable as error:
                log.warning("schema.waiting", error=error.detail)
                await asyncio.sleep(MIGRATION_RETRY_SECONDS)
            except Exception:
                log.exception("schema.failed")
                await asyncio.sleep(MIGRATION_RETRY_SECONDS * 10)
            else:
                _settle_memory()
                self.readiness.started = True
                self._background.append(asyncio.create_task(self.streams.keep_alive()))
                log.info("instance.ready")
                return
