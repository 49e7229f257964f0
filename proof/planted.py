"""Bugs that are planted on purpose, each in a copy of the source, and the checks that must notice them.

Each bug removes one safeguard. A run with the bug, whose load lasts `Bug.seconds`, must end with a finding of one of
`Bug.checks`. The same run without the bug must end without findings, which `python -m proof` shows for all kinds of
faults.
"""

import asyncio
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import msgspec

from proof.plan import Plan
from proof.run import Run, run

SOURCE = Path(__file__).parents[1] / "src"
FUNCTIONS = "tenure/store/engines/postgres/functions"
RUN_SECONDS = 30.0


class Replacement(NamedTuple):
    path: str
    """Relative to `src`."""
    old: str
    new: str


class Bug(NamedTuple):
    what: str
    replacements: tuple[Replacement, ...]
    checks: tuple[str, ...]
    """At least one of these checks must have a finding."""
    faults: tuple[str, ...]
    load: float = 1.0
    seconds: float = RUN_SECONDS

    def plan(self, seed: int, source: Path) -> Plan:
        return Plan(
            seed=seed, seconds=self.seconds, faults=self.faults, load=self.load, source=source, fault_pause_seconds=0.3
        )


def _sql(function: str, old: str, new: str) -> Replacement:
    return Replacement(f"{FUNCTIONS}/{function}.sql", old, new)


_BEFORE_COMMIT = """
    async def _call_before_commit(self, _connections: Any, statement: str, *arguments: Any) -> Any:
        connection = await self._connect_hot()
        await connection.execute("BEGIN")
        records = await connection.fetch(statement, *arguments)

        async def commit() -> None:
            await asyncio.sleep(0.2)
            await connection.execute("COMMIT")
            connection.terminate()

        self._late = [*getattr(self, "_late", [])[-100:], asyncio.ensure_future(commit())]
        return records

    async def _call(self, statement"""

_SENT_FIRST = """        payloads = Payloads(self._store, self._sources)
        await payloads.read(submission_ids)
        for each in submission_ids:
            await self._sender.send(queue.gateway, payloads.envelope(each))
"""

_EXPIRED_BY_HOST = """        await self._call(
            "UPDATE leases SET released = true WHERE name = $1 AND expires_at <= $2::text::timestamptz",
            name,
            host_clock.from_microseconds(host_clock.wall_microseconds()).isoformat(),
        )
        (record,) = await self._call_on(
            self._watching, statements.ACQUIRE,"""

BUGS: dict[str, Bug] = {
    "cut-lock": Bug(
        "session writes do not take the shared cut lock",
        (_sql("tenure_lock_cut_shared_1", "AS 'SELECT pg_advisory_xact_lock_shared(7305808868231127649)'", "AS ''"),),
        ("usage",),
        ("late-commits",),
    ),
    "fence": Bug(
        "a write of a leader does not check its fence",
        (_sql("tenure_check_fence_1", "PERFORM tenure_lease_lost_1(p_name, p_holder, p_epoch)", "NULL"),),
        ("leases", "submissions"),
        ("database-link-stall",),
        seconds=35.0,
    ),
    "sweep-time": Bug(
        "the sweep records its own time as the end of a session",
        (_sql("tenure_expire_1", "coalesce(s.closed_at, s.deadline_at)", "coalesce(s.closed_at, v_now)"),),
        ("deadlines",),
        (),
    ),
    "seat-lock": Bug(
        "seats are counted without a lock",
        (_sql("tenure_open_limited_1", "ORDER BY c.capacity_id FOR UPDATE", "ORDER BY c.capacity_id"),),
        ("seats",),
        ("late-commits",),
        load=2.0,
    ),
    "intake-trail": Bug(
        "the intake reads only changes after its cursor",
        (
            Replacement("tenure/submissions/intake.py", "TRAIL = 5 * SECOND", "TRAIL = 0"),
            Replacement("tenure/submissions/intake.py", "HINT_TRAIL = SECOND // 10", "HINT_TRAIL = 0"),
        ),
        ("submissions",),
        ("late-commits",),
    ),
    "attempt-late": Bug(
        "an attempt is recorded after its request was sent",
        (
            Replacement(
                "tenure/submissions/executor.py",
                "        payloads = Payloads(self._store, self._sources)\n",
                _SENT_FIRST,
            ),
        ),
        ("submissions",),
        ("kill",),
    ),
    "host-clock": Bug(
        "the host clock decides whether a lease has expired",
        (
            Replacement(
                "tenure/store/reads/leases.py",
                'values["expires_at"] > now',
                'values["expires_at"] > host_clock.from_microseconds(host_clock.wall_microseconds())',
            ),
            Replacement(
                "tenure/store/reads/leases.py",
                "from tenure.domain.jobs import Board",
                "import tenure.clock as host_clock\nfrom tenure.domain.jobs import Board",
            ),
            Replacement(
                "tenure/store/engines/postgres/store.py",
                "        (record,) = await self._call_on(\n            self._watching, statements.ACQUIRE,",
                _EXPIRED_BY_HOST,
            ),
            Replacement(
                "tenure/store/engines/postgres/store.py",
                "from tenure.store.contract import Topic",
                "import tenure.clock as host_clock\nfrom tenure.store.contract import Topic",
            ),
        ),
        ("leases",),
        ("kill",),
    ),
    "answer-early": Bug(
        "opens are answered before they are committed",
        (
            Replacement(
                "tenure/store/engines/postgres/store.py",
                "self._call_on(\n            self._openings,\n            statements.OPEN[lane],",
                "self._call_before_commit(\n            self._openings,\n            statements.OPEN[lane],",
            ),
            Replacement(
                "tenure/store/engines/postgres/client.py", "\n    async def _call(self, statement", _BEFORE_COMMIT
            ),
        ),
        ("one session",),
        ("kill",),
    ),
    "key-order": Bug(
        "batches do not sort their keys",
        (
            Replacement(
                "tenure/sessions/open.py",
                "leaders = [best[key] for key in sorted(best)]",
                "leaders = [best[key] for key in sorted(best, key=lambda _: __import__('random').random())]",
            ),
        ),
        ("answers",),
        ("late-commits",),
        seconds=20.0,
    ),
    "epoch-reset": Bug(
        "a lease that is acquired again begins with epoch 1",
        (
            _sql(
                "tenure_begin_epoch_1",
                "VALUES (p_lease.name, p_lease.epoch + 1, p_holder, p_now);",
                "VALUES (p_lease.name, 1, p_holder, p_now) ON CONFLICT (name, epoch) DO UPDATE "
                "SET holder = excluded.holder, acquired_at = excluded.acquired_at, ended_at = NULL, how = NULL;",
            ),
            _sql(
                "tenure_begin_epoch_1",
                "epoch = p_lease.epoch + 1,",
                "epoch = CASE WHEN p_lease.name LIKE 'job:%' THEN p_lease.epoch + 1 ELSE 1 END,",
            ),
        ),
        ("leases",),
        ("resign", "kill"),
    ),
    "tenant-filter": Bug(
        "writes do not compare the tenant of the session with that of the API key",
        (_sql("tenure_in_scope_1", "(b.tenant IS NULL OR b.tenant = s.tenant_object_id)", "true"),),
        ("access",),
        (),
    ),
    "key-cache": Bug(
        "a revoked API key stays in the cache",
        (
            Replacement(
                "tenure/access/authenticator.py",
                "            self._drop_cache()\n            if self._version",
                "            if self._version",
            ),
        ),
        ("access",),
        (),
    ),
    "late-event": Bug(
        "the horizon of events does not wait for writes in progress",
        (_sql("tenure_finish_publishing_1", "EXIT WHEN cardinality(v_holders) = 0;", "EXIT;"),),
        ("events",),
        ("late-commits",),
    ),
}


class Caught(NamedTuple):
    bug: str
    seconds: float
    """How long the load and the faults lasted."""
    by: dict[str, str]
    """The checks that noticed the bug, and the first finding of each."""

    @property
    def as_expected(self) -> bool:
        return any(check in self.by for check in BUGS[self.bug].checks)


def plant(bug: Bug, folder: Path) -> Path:
    """Copies the source to `folder` and plants the bug. Raises if a text to replace does not occur exactly once."""
    target = folder / "src"
    shutil.copytree(SOURCE, target, ignore=shutil.ignore_patterns("__pycache__"))
    for path, old, new in bug.replacements:
        text = (target / path).read_text(encoding="utf-8")
        if text.count(old) != 1:
            raise ValueError(f"{path} contains the line to replace {text.count(old)} times: {old}")
        (target / path).write_text(text.replace(old, new), encoding="utf-8")
    return target


async def run_planted(
    name: str, seed: int, say: Callable[[str], None] = lambda _: None, seconds: float | None = None
) -> Caught:
    """`seconds`: how long the load lasts; None: `Bug.seconds`."""
    folder = Path(tempfile.mkdtemp(prefix="planted"))
    try:
        bug = BUGS[name]
        plan = bug.plan(seed, await asyncio.to_thread(plant, bug, folder))
        plan = plan if seconds is None else msgspec.structs.replace(plan, seconds=seconds)
        done: Run = await run(plan, say)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return Caught(
        name, plan.seconds, {check: each.findings[0] for check, each in done.outcomes.items() if each.findings}
    )


def encode(caught: list[Caught]) -> bytes:
    return msgspec.json.format(msgspec.json.encode([each._asdict() for each in caught]), indent=2)
