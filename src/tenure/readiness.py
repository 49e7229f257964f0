"""Whether this instance should get requests: started, not stopping, database within reach, schema new enough."""

from tenure.errors import Draining, SchemaTooOld, Starting
from tenure.store import migrate
from tenure.store.store import Store


class Readiness:
    def __init__(self, store: Store) -> None:
        self._store = store
        self.started = False
        self.draining = False

    async def check(self) -> None:
        """Raises what is in the way, if anything is."""
        if self.draining:
            raise Draining("this instance is stopping")
        if not self.started:
            raise Starting("this instance is starting")
        revision = await self._store.schema_revision()
        if not migrate.is_sufficient(revision):
            raise SchemaTooOld(
                f"the schema is at {revision or 'nothing'}; this version needs {migrate.required_revision()}"
            )
