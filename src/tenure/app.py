"""Builds an instance: the only module that knows all the others."""

import asyncio
import gc

import structlog
from msgspec.structs import replace

from tenure.config import Config, SessionsConfig
from tenure.errors import ConfigurationError, DatabaseUnavailable
from tenure.http.capacities import CapacityRoutes
from tenure.http.openapi import DocumentRoutes
from tenure.http.operations import OperationRoutes
from tenure.http.routing import Router
from tenure.http.sessions import SessionRoutes
from tenure.http.streams import StreamRoutes
from tenure.http.transcriptions import TranscriptionRoutes
from tenure.readiness import Readiness
from tenure.sessions.counters import Counters
from tenure.sessions.opening import Opener
from tenure.sessions.sessions import Sessions
from tenure.sessions.sweeping import Sweep
from tenure.store.engines import open_store
from tenure.streams.handlers import HandlerFactory, handler_factory
from tenure.streams.streams import Streams

log = structlog.get_logger()

MIGRATION_RETRY_SECONDS = 0.5
GARBAGE_THRESHOLD = 20_000


SWEEP = "expire-sessions"
TRANSCRIPTION = "transcription"


def _interval(config: Config, job: str) -> float:
    seconds = config.job(job).interval_seconds
    if seconds is None:
        raise ConfigurationError(f"jobs.{job}.interval_seconds: must be set")
    return seconds


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
        self.readiness = Readiness(self._store)
        self._sweep = None if config.job(SWEEP).paused else Sweep(self._store, counters, _interval(config, SWEEP))
        routes = [
            *SessionRoutes(sessions, config.prefix).routes(),
            *CapacityRoutes(self._store, config.prefix).routes(),
            *TranscriptionRoutes(self.streams, stream_opener, sessions.keeper, _transcription_factory(config)).routes(),
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
        await self.streams.stop()
        tasks = [*self._background, *([self._starting] if self._starting is not None else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._store.close()

    async def _start(self) -> None:
        """Waits for a database that is not there yet: whoever starts both need not mind the order."""
        while True:
            try:
                for revision in await self._store.migrate():
                    log.info("schema.migrated", revision=revision)
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
                if self._sweep is not None:
                    self._background.append(asyncio.create_task(self._sweep.run()))
                log.info("instance.ready")
                return
