"""Workers of a process group ask each other for their figures: byte strings that each worker registers by name."""

import asyncio
import stat
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from tenure.errors import ConfigurationError
from tenure.telemetry import siblings
from tenure.telemetry.siblings import FIGURE_MAX_BYTES, Siblings, create_folder, delete_folder


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pause of the machine must not look like a sibling (another worker of the group) that does not answer."""
    monkeypatch.setattr(siblings, "ASK_SECONDS", 30.0)


@pytest.fixture
def folder() -> Iterator[Path]:
    """The folder of the sockets. It is not `tmp_path`, because that path may be too long for a socket."""
    made = create_folder()
    yield made
    delete_folder(made)


def content(folder: Path) -> list[Path]:
    return list(folder.iterdir())


@asynccontextmanager
async def group(folder: Path, *figures: bytes, running: int | None = None) -> AsyncIterator[list[Siblings]]:
    """Workers with these figures. Only the first `running` workers are started; by default, all."""
    workers = [Siblings(folder, slot, len(figures)) for slot in range(len(figures))]
    async with AsyncExitStack() as started:
        for worker, figure in zip(workers, figures, strict=True):
            worker.register("figure", lambda figure=figure: figure)  # type: ignore[misc]
        for worker in workers[:running]:
            await worker.start()
            started.push_async_callback(worker.stop)
        yield workers


@asynccontextmanager
async def answering(folder: Path, slot: int, answer: bytes | None) -> AsyncIterator[None]:
    """A sibling that sends `answer` and closes the connection. If `answer` is None, the sibling sends nothing."""
    release = asyncio.Event()

    async def serve(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if answer is None:
            await release.wait()
        else:
            writer.write(answer)
        writer.close()

    async with await asyncio.start_unix_server(serve, folder / str(slot)):
        yield
        release.set()


async def test_every_worker_gets_the_figures_of_all(folder: Path) -> None:
    async with group(folder, b"one", b"two", b"three") as workers:
        for worker in workers:
            assert sorted(await worker.ask("figure")) == [b"one", b"three", b"two"]


async def test_single_worker_opens_no_socket() -> None:
    worker = Siblings()
    worker.register("figure", lambda: b"one")
    await worker.start()
    assert (await worker.ask("figure"), worker.workers) == ([b"one"], 1)
    await worker.stop()


async def test_sibling_that_has_not_started_is_left_out(folder: Path) -> None:
    async with group(folder, b"one", b"two", running=1) as (worker, _):
        assert await worker.ask("figure") == [b"one"]


async def test_sibling_that_does_not_answer_is_left_out(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(siblings, "ASK_SECONDS", 0.05)
    async with answering(folder, 2, None), group(folder, b"one", b"two", b"three", running=2) as (worker, *_):
        assert await worker.ask("figure") == [b"one", b"two"]


async def test_incomplete_or_oversized_answer_is_left_out(folder: Path) -> None:
    for answer in (b"", b"\0\0", b"\0\0\0\5four", (FIGURE_MAX_BYTES + 1).to_bytes(4) + b"x"):
        async with answering(folder, 1, answer), group(folder, b"one", b"two", running=1) as (worker, _):
            assert await worker.ask("figure") == [b"one"], answer


async def test_sibling_that_does_not_know_the_figure_is_left_out(folder: Path) -> None:
    async with group(folder, b"one", b"two") as (newer, _):
        newer.register("newer", lambda: b"new")
        assert await newer.ask("newer") == [b"new"]


async def test_figure_of_maximum_size_is_received_completely(folder: Path) -> None:
    async with group(folder, b"one", b"x" * FIGURE_MAX_BYTES) as (worker, _):
        assert [len(each) for each in await worker.ask("figure")] == [3, FIGURE_MAX_BYTES]


async def test_replacement_takes_over_the_slot_of_a_dead_worker(folder: Path) -> None:
    async with group(folder, b"one", b"two", running=1) as (worker, replacement):
        async with answering(folder, 1, b""):
            pass  # a killed worker leaves its socket
        await replacement.start()
        assert await worker.ask("figure") == [b"one", b"two"]
        await replacement.stop()
    assert content(folder) == []


def test_folder_is_accessible_only_to_its_owner(folder: Path) -> None:
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_start_is_refused_without_a_usable_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    long = tmp_path / ("x" * 100)
    long.mkdir()
    for unusable in (tmp_path / "missing", long):
        monkeypatch.setattr(tempfile, "tempdir", str(unusable))
        with pytest.raises(ConfigurationError, match="TMPDIR"):
            create_folder()
    assert content(long) == []
