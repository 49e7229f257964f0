"""TLS: its versions, the replacement of certificates while clients are served, and HTTP and WebSockets over TLS."""

import asyncio
import contextlib
import gc
import itertools
import signal
import socket
import ssl
import time
import warnings
import weakref
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tenure.errors import ConfigurationError
from tenure.server.http1 import HotProtocol
from tenure.server.tls import Certificate, Handshake
from tenure.server.websocket import WebSocketProtocol
from tenure.telemetry.events import TlsReloaded, TlsReloadFailed
from tests.edge.conftest import ServeWith, many, raw, refusals, responses
from tests.http.client import TIMEOUT_SECONDS, open_body, request
from tests.http.local import LocalService, eventually
from tests.support.certificates import CertificateFiles, any_certificate, certificate_files
from tests.support.instances import RunningInstance
from tests.support.processes import family
from tests.support.streams import Client, Refused, handshake

GET = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n"
KIBIBYTE = 1024
BEGIN, END = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"


@pytest.fixture
def files(tmp_path: Path) -> CertificateFiles:
    files = certificate_files(tmp_path)
    files.write("first")
    return files


def settings(files: CertificateFiles) -> dict[str, str]:
    return {"tls_certificate": str(files.certificate), "tls_key": str(files.key)}


@pytest.fixture
async def service(serve_with: ServeWith, files: CertificateFiles, monkeypatch: pytest.MonkeyPatch) -> LocalService:
    monkeypatch.setattr("tenure.server.http1.QUIET_SECONDS", 0.2)
    return await serve_with(settings(files), head_seconds=1.0, max_header_bytes=2048, max_connections=1010)


# The protocol.


async def test_tls_1_2_and_1_3_are_accepted_and_older_versions_refused(service: LocalService) -> None:
    for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
        async with raw(service, any_certificate(version)) as client:
            await client.send(GET + b"\r\n")
            assert (await client.answer()).status == 200
            secured = client.writer.get_extra_info("ssl_object")
            assert (secured.version(), secured.selected_alpn_protocol()) == (
                version.name.replace("v1_", "v1."),
                "http/1.1",
            )
    for version in (ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1):
        with pytest.raises((ConnectionError, ssl.SSLError)):
            async with raw(service, any_certificate(version)):
                pass
    # The refusal comes from the instance: the client supports TLS 1.1, and connects once the instance allows it.
    context = service._server._certificate.context  # type: ignore[union-attr]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        context.minimum_version = ssl.TLSVersion.TLSv1_1
    context.set_ciphers("ALL:@SECLEVEL=0")
    async with raw(service, any_certificate(ssl.TLSVersion.TLSv1_1)) as client:
        assert client.writer.get_extra_info("ssl_object").version() == "TLSv1.1"


async def test_client_hello_in_many_pieces_is_accepted(service: LocalService) -> None:
    """A ClientHello with post-quantum keys exceeds one packet. Its first pieces arrive before TLS has started."""
    for size in (1, 100, 200, 10_000):
        reader, writer = await asyncio.open_connection("127.0.0.1", service.port)
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        secured = any_certificate().wrap_bio(incoming, outgoing)
        async with asyncio.timeout(TIMEOUT_SECONDS):
            while True:
                try:
                    secured.do_handshake()
                    break
                except ssl.SSLWantReadError:
                    content = outgoing.read()
                    for at in range(0, len(content), size):
                        writer.write(content[at : at + size])
                        await asyncio.sleep(0.001 if at < 1000 else 0)
                    incoming.write(await reader.read(10_000))
            secured.write(GET + b"\r\n")  # in the same packet as the end of the handshake
            writer.write(outgoing.read())
            incoming.write(await reader.read(10_000))
            while True:
                try:
                    assert secured.read(8) == b"HTTP/1.1"
                    break
                except ssl.SSLWantReadError:
                    incoming.write(await reader.read(10_000))
        writer.transport.abort()


async def test_both_lanes_pipelining_and_long_bodies_work(service: LocalService) -> None:
    async with raw(service, any_certificate()) as client:
        for path in ("/sessions", "/sessions?"):
            await client.send(request(open_body(), path=path))
            assert (await client.answer()).status == 201
        await client.send((GET + b"\r\n" + request({})) * 200)
        assert [(await client.answer()).status for _ in range(400)] == [200, 400] * 200
        await client.send(request(b"[" * 60_000))
        assert (await client.answer()).status == 400


async def test_client_gets_the_refusal_even_if_it_keeps_sending(service: LocalService) -> None:
    refused = {
        431: GET + b"X-Long: " + b"x" * 100_000,
        413: request(b"", "Connection: close", length=8 * KIBIBYTE * KIBIBYTE) + b" " * 100_000,
        400: b"nonsense\r\n" + b"x" * 100_000,
    }
    for status, start in refused.items():
        async with raw(service, any_certificate()) as client:
            client.writer.transport.pause_reading()  # type: ignore[attr-defined]
            await client.send(start)
            for _ in range(20):
                await asyncio.sleep(0.01)
                await client.send(b" " * 10_000)
            client.writer.transport.resume_reading()  # type: ignore[attr-defined]
            assert responses(await client.rest()) == [status]
    async with raw(service, any_certificate()) as client:
        await client.send(GET + b"X-Slow: ")
        assert responses(await client.rest()) == [408]


async def test_plain_http_is_not_answered(service: LocalService) -> None:
    async with raw(service) as client:
        await client.send(GET + b"\r\n")
        assert b"HTTP" not in await _rest(client)


async def _rest(client: Any) -> bytes:
    try:
        return await client.rest()  # type: ignore[no-any-return]
    except ConnectionError:
        return b""


async def test_unfinished_handshakes_are_limited_in_number_and_time(
    serve_with: ServeWith, files: CertificateFiles
) -> None:
    service = await serve_with(settings(files), head_seconds=0.3, max_connections=20)
    async with many(service, 40) as silent:
        for attacker in silent[::2]:
            with contextlib.suppress(ConnectionError):
                await attacker.send(b"\x16\x03\x01")
        assert len(service._server.server_state.connections) <= 20
        for _ in range(3):
            async with raw(service, any_certificate()) as client:
                await client.send(GET + b"\r\n")
                assert (await client.answer()).status == 200
        await eventually(lambda: not service._server.server_state.connections)
    assert await refusals(service, "max_connections") > 0
    assert await refusals(service, "head_seconds") > 0


async def test_streams_work_over_tls(service: LocalService) -> None:
    client = await Client.connect(service.port, "/sessions/stream", tls=any_certificate())
    session = await client.open()
    for message in ("hello", b"x" * 300_000):
        await client.send(message)
        assert await client.receive() == message
    end, code = await client.stop()
    assert (end["type"], code) == ("session_end", 1000)
    await eventually(lambda: not _streams_of(service))
    assert (await service.get(session["sessionId"]))["closeReason"] == "STOPPED"
    client = await Client.connect(service.port, "/sessions/stream", tls=any_certificate())
    await client.open()
    await client.send("x" * 2_000_000)
    messages, code = await client.read_to_end()
    assert (code, b"TOO_LARGE" in str(messages).encode()) == (1009, True)
    with pytest.raises(Refused) as refused:
        await Client.connect(service.port, "/nowhere", tls=any_certificate())
    assert refused.value.status == 404
    await eventually(lambda: not _streams_of(service))


def _streams_of(service: LocalService) -> list[object]:
    return [each for each in service._server.server_state.connections if isinstance(each, WebSocketProtocol)]


async def test_closed_connection_is_freed_without_garbage_collector(
    service: LocalService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Failed handshakes are not tested: they leave a reference cycle in the `start_tls` of asyncio (not of uvloop)."""
    alive: weakref.WeakSet[object] = weakref.WeakSet()
    for kind in (Handshake, HotProtocol, WebSocketProtocol):
        initialise: Any = kind.__init__

        def watched(instance: Any, *arguments: Any, initialise: Any = initialise, **named: Any) -> None:
            alive.add(instance)
            initialise(instance, *arguments, **named)

        monkeypatch.setattr(kind, "__init__", watched)
    gc.collect()
    gc.disable()
    try:
        for content in (GET + b"\r\n", GET, b"nonsense\r\n\r\n", handshake("/sessions/stream")):
            async with raw(service, any_certificate()) as client:
                await client.send(content)
                await asyncio.sleep(0.05)
            await eventually(lambda: not service._server.server_state.connections)
            await eventually(lambda: not alive)
    finally:
        gc.enable()


# Certificates.


async def _peer_certificate(service: LocalService) -> bytes:
    async with raw(service, any_certificate()) as client:
        return client.writer.get_extra_info("ssl_object").getpeercert(binary_form=True)  # type: ignore[no-any-return]


async def test_replaced_certificate_is_shown_to_new_connections_and_a_bad_one_is_not(
    service: LocalService, files: CertificateFiles
) -> None:
    first = await _peer_certificate(service)
    async with raw(service, any_certificate()) as old:
        second = files.write("second")
        assert await _peer_certificate(service) == first
        service._server.reload_certificate()
        assert await _peer_certificate(service) == second
        for _, break_it in BROKEN:
            break_it(files)
            service._server.reload_certificate()
            assert await _peer_certificate(service) == second
        third = files.write("third")
        service._server.reload_certificate()
        assert await _peer_certificate(service) == third
        await old.send(GET + b"\r\n")
        assert (await old.answer()).status == 200
    assert len(service.telemetry.of(TlsReloaded)) == 2
    assert len(service.telemetry.of(TlsReloadFailed)) == len(BROKEN)
    assert len({event.sha256 for event in service.telemetry.of(TlsReloaded)}) == 2


def _other_key(files: CertificateFiles) -> None:
    certificate = files.certificate.read_bytes()
    files.write("other")
    files.certificate.write_bytes(certificate)


def _encrypted_key(files: CertificateFiles) -> None:
    from cryptography.hazmat.primitives import serialization  # noqa: PLC0415

    files.write("encrypted")
    key = serialization.load_pem_private_key(files.key.read_bytes(), None)
    encrypted = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.BestAvailableEncryption(b"x")
    )
    files.key.write_bytes(encrypted)


BROKEN: list[tuple[str, Callable[[CertificateFiles], object]]] = [
    ("key values mismatch", _other_key),
    ("not encrypted", _encrypted_key),
    ("contains no certificate", lambda files: files.certificate.write_bytes(files.key.read_bytes())),
    ("must be a certificate chain", lambda files: (files.write("x"), files.key.write_text("x"))),
    ("contains no certificate", lambda files: files.certificate.write_bytes(files.certificate.read_bytes()[:200])),
    ("must be a certificate chain", lambda files: files.certificate.write_text(f"{BEGIN}\nAAAA\n{END}\n")),
    ("tls_key: ", lambda files: (files.write("x"), files.key.unlink())),
    ("tls_certificate: ", lambda files: (files.write("x"), files.certificate.unlink())),
]
"""A part of the error message, and a function that damages the files."""


def test_wrong_files_are_refused_with_the_reason(tmp_path: Path) -> None:
    for part, break_it in BROKEN:
        files = certificate_files(tmp_path)
        files.write("x")
        break_it(files)
        with pytest.raises(ConfigurationError) as refused:
            Certificate(*settings(files).values())
        assert part in str(refused.value)
        assert "\n" not in str(refused.value)


# Real processes.


async def _use(port: int, until: asyncio.Event, *, keep_alive: bool) -> Counter[object]:
    """Sends requests one after the other: 20 on each connection if `keep_alive` is true, otherwise one. Returns how
    often each status and each error occurred.
    """
    found: Counter[object] = Counter()
    tls = any_certificate()
    paths = itertools.cycle(["/sessions", "/sessions?"])
    while not until.is_set():
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=tls)
            for _ in range(20 if keep_alive else 1):
                writer.write(request(open_body(), path=next(paths)))
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.lower().partition(b"content-length: ")[2].split()[0])
                await reader.readexactly(length)
                found[int(head.split()[1])] += 1
            writer.close()
        except (OSError, asyncio.IncompleteReadError) as error:
            found[repr(error)] += 1
    return found


async def _shown(port: int) -> bytes:
    _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=any_certificate())
    certificate = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.close()
    return certificate  # type: ignore[no-any-return]


async def _until_log_has(instance: RunningInstance, event: str, count: int) -> None:
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while instance.log().count(f'"{event}"') < count:
        assert time.monotonic() < deadline, instance.log()
        await asyncio.sleep(0.05)


@pytest.mark.slow
async def test_certificate_is_replaced_under_load_without_a_failed_request(
    start: type[RunningInstance], files: CertificateFiles, tmp_path: Path
) -> None:
    instance = start(f"sqlite:///{tmp_path / 'tenure.db'}", *files.flags, "--workers", "2")
    assert instance.address.startswith("https://")
    instance.wait_until_ready()
    ended = asyncio.Event()
    clients = [asyncio.create_task(_use(instance.port, ended, keep_alive=number % 2 == 0)) for number in range(6)]
    for number in range(1, 4):
        latest = files.write(f"certificate {number}")
        instance.send(signal.SIGHUP)
        await _until_log_has(instance, "tls.reloaded", 2 * number)
        assert {await _shown(instance.port) for _ in range(10)} == {latest}
        files.key.write_text("broken")
        instance.send(signal.SIGHUP)
        await _until_log_has(instance, "tls.reload_failed", 2 * number)
        assert {await _shown(instance.port) for _ in range(10)} == {latest}
    ended.set()
    found = sum((await asyncio.gather(*clients)), Counter[object]())
    assert set(found) == {201}, found
    assert found[201] > 50
    # A new worker that starts while the files are broken waits for valid files. The service stays available.
    failed = instance.log().count('"tls.reload_failed"')
    next(process for process in family(instance.process.pid)[1:] if "spawn_main" in " ".join(process.cmdline())).kill()
    await _until_log_has(instance, "tls.reload_failed", failed + 1)
    assert await _shown(instance.port) == latest
    files.write("valid again")
    await _until_log_has(instance, "instance.ready", 3)
    # A drain ends streams, and closes idle connections.
    _, idle = await asyncio.open_connection("127.0.0.1", instance.port, ssl=any_certificate())
    stream = await Client.connect(instance.port, "/sessions/stream", tls=any_certificate())
    await stream.open()
    await stream.send("hello")
    assert await stream.receive() == "hello"
    instance.terminate()
    assert (await stream.read_to_end())[1] == 1012
    assert await asyncio.to_thread(instance.wait_for_exit) == 0
    idle.close()


@pytest.mark.slow
async def test_every_kind_of_host_is_served_over_tls_and_wrong_files_prevent_the_start(
    start: type[RunningInstance], files: CertificateFiles, tmp_path: Path
) -> None:
    database = f"sqlite:///{tmp_path / 'tenure.db'}"
    hosts = ["localhost", "0.0.0.0", *(["::"] if socket.has_dualstack_ipv6() else [])]
    instances = [start(database, *files.flags, "--host", host, "--insecure") for host in hosts]
    for host, instance in zip(hosts, instances, strict=True):
        assert instance.address.startswith("https://"), host
        reader, writer = await asyncio.open_connection("127.0.0.1", instance.port, ssl=any_certificate())
        writer.write(GET + b"Connection: close\r\n\r\n")
        assert (await reader.read()).startswith(b"HTTP/1.1 200 "), host
        writer.close()
    files.key.write_text("broken")
    for workers in ("1", "2"):
        refused = start(database, *files.flags, "--workers", workers)
        assert await asyncio.to_thread(refused.wait_for_exit) == 2
        assert refused.log().startswith("tenure: tls_certificate, tls_key: ")
        assert refused.log().count("\n") == 1
