"""Builds an instance: the only module that knows all the others."""

import asyncio
import gc
from collections.abc import MutableMapping
from typing import Any

import structlog

from tenure.config import Config
from tenure.errors import ConfigurationError, DatabaseUnavailable
from tenure.http.openapi import DocumentRoutes
from tenure.http.operations import OperationRoutes
from tenure.http.routing import Receive, Router, Send
from tenure.http.sessions import SessionRoutes
from tenure.readiness import Readiness
from tenure.sessions.counters import Counters
from tenure.sessions.opening import Opener
from tenure.sessions.sessions import Sessions
from tenure.store.engines import open_store

log = structlog.get_logger()

MIGRATION_RETRY_SECONDS = 0.5
GARBAGE_THRESHOLD = 20_000


def _settle_memory() -> None:
    """What is there after the start stays: looking through it for garbage again and again costs two per cent."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(GARBAGE_THRESHOLD)


class Instance:
    """One running service process, as an ASGI application. It answers at once; it is ready once the schema is."""

    def __init__(self, config: Config) -> None:
        self._store = open_store(config.database, config.pool_size)
        counters = Counters()
        sessions = Sessions(self._store, Opener(self._store, config.sessions, counters), counters)
        self.readiness = Readiness(self._store)
        routes = [
            *SessionRoutes(sessions, config.prefix).routes(),
            *OperationRoutes(sessions, self.readiness).routes(),
        ]
        self.router = Router([*routes, *DocumentRoutes(routes, config.prefix).routes()], config.prefix)
        self._starting: asyncio.Task[None] | None = None

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await self.router(scope, receive, send)
        else:
            await send({"type": "websocket.close", "code": 1000})

    def start(self) -> asyncio.Task[None]:
        """Ends once the instance is ready; raises if a setting turns out to be wrong."""
        self._starting = asyncio.create_task(self._start())
        return self._starting

    async def stop(self) -> None:
        if self._starting is not None:
            self._starting.cancel()
            await asyncio.gather(self._starting, return_exceptions=True)
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
                log.info("instance.ready")
                return
