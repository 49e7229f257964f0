"""Checks of deliveries: usage that is not sent, submissions that failed or have no gateway, and the gateways."""

import asyncio
import ssl
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from urllib.parse import SplitResult, urlsplit

from tenure import __version__
from tenure.clock import from_microseconds, wall_microseconds
from tenure.config import GatewayConfig
from tenure.doctor.findings import Code, Finding, broken, warning
from tenure.doctor.patient import Patient
from tenure.domain.submissions import USAGES, SubmissionFilter, SubmissionState

CONNECT_SECONDS = 2.0
ANSWER_SECONDS = 2.0
HEAD_MAX_BYTES = 65_536
CLOCK_WARNING = timedelta(seconds=30)
PORTS = {"http": 80, "https": 443}
SECTION = "printf '\\n[gateways.{}]\\nurl = \"{}\"\\n' >> tenure.toml"
EXAMPLE_URL = "https://billing.example.com/usages"


async def check_usage_gateway(patient: Patient) -> Sequence[Finding]:
    unsent = await patient.store.find_unsent_usage()
    if USAGES not in patient.settings.gateways:
        waiting = f"; windows with usage that were never sent: {unsent.windows}" if unsent.windows else ""
        seen = f"no gateway `usages` is configured: usage is metered, but sent nowhere{waiting}"
        return [warning(Code.NO_USAGE_GATEWAY, seen, SECTION.format(USAGES, EXAMPLE_URL))]
    if unsent.from_at is None:
        return []
    since = unsent.from_at.strftime("%Y-%m-%d")
    seen = f"windows with usage since {since} that were cut without a gateway and never sent: {unsent.windows}"
    return [warning(Code.WINDOWS_UNSENT, seen, patient.command(f"usage send --from {since}"))]


async def check_submissions(patient: Patient) -> Sequence[Finding]:
    findings = []
    failed = await patient.store.list_submissions(SubmissionFilter(state=SubmissionState.FAILED), None, 1)
    if failed:
        gateway = failed[0].gateway
        seen = f"submissions have failed permanently, the newest one to gateway {gateway}: {failed[0].last_error}"
        mend = "tenure submissions retry --all --state failed"
        findings.append(warning(Code.SUBMISSIONS_FAILED, seen, mend, gateway))
    gauges = await patient.store.read_gauges(list(patient.settings.gateways))
    stranded = gauges.pending - sum(gauges.pending_by_gateway.values())
    if stranded > 0:
        seen = f"submissions that wait for gateways that are not configured here: {stranded}"
        findings.append(warning(Code.SUBMISSIONS_STRANDED, seen, "tenure submissions list --state pending"))
    return findings


async def check_gateways(patient: Patient) -> Sequence[Finding]:
    """Checks all gateways at the same time."""
    gateways = patient.settings.gateways.items()
    found = await asyncio.gather(*(_check_gateway(name, gateway) for name, gateway in gateways))
    return [finding for findings in found for finding in findings]


async def _check_gateway(name: str, gateway: GatewayConfig) -> Sequence[Finding]:
    """Connects, and sends an OPTIONS request without a body. The request delivers nothing, and the `Date` of the
    response shows the clock of the receiver.

    No finding contains the path of the URL, because the path may contain a token.
    """
    parts = urlsplit(gateway.url)
    host, port = parts.hostname or "", parts.port or PORTS[parts.scheme]
    place = f"{parts.scheme}://{parts.netloc}"
    try:
        async with asyncio.timeout(CONNECT_SECONDS):
            context = ssl.create_default_context() if parts.scheme == "https" else None
            reader, writer = await asyncio.open_connection(host, port, ssl=context, limit=HEAD_MAX_BYTES)
    except TimeoutError:
        return [_unreachable(name, place, f"no connection within {CONNECT_SECONDS:g} seconds")]
    except ssl.SSLCertVerificationError as error:
        return [_unreachable(name, place, f"the certificate is not valid: {error.verify_message}")]
    except OSError as error:
        return [_unreachable(name, place, error.strerror or str(error))]
    try:
        head = await _ask_for_head(reader, writer, parts)
    except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
        seen = f"{place} accepts connections, but {_how_silent(error)}"
        return [warning(Code.GATEWAY_SILENT, seen, f"curl -i -X OPTIONS {place}", name)]
    finally:
        writer.transport.abort()
    return _check_time(name, place, head)


def _unreachable(name: str, place: str, reason: str) -> Finding:
    seen = f"gateway {name} at {place} cannot be reached: {reason}"
    return broken(Code.GATEWAY_UNREACHABLE, seen, f"curl -i -X OPTIONS {place}", name)


async def _ask_for_head(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, parts: SplitResult) -> bytes:
    async with asyncio.timeout(ANSWER_SECONDS):
        target = parts.path or "/"
        writer.write(
            f"OPTIONS {target} HTTP/1.1\r\nHost: {parts.netloc}\r\nUser-Agent: tenure-doctor/{__version__}\r\n"
            "Content-Length: 0\r\nConnection: close\r\n\r\n".encode("ascii")
        )
        return await reader.readuntil(b"\r\n\r\n")


def _how_silent(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return f"did not answer within {ANSWER_SECONDS:g} seconds"
    if isinstance(error, asyncio.LimitOverrunError):
        return f"sent more than {HEAD_MAX_BYTES} bytes of headers"
    return "closed the connection without an answer"


def _check_time(name: str, place: str, head: bytes) -> Sequence[Finding]:
    """Warns if the clock of the receiver differs from the clock of this host by more than CLOCK_WARNING. If the clocks
    differ by more than five minutes, a receiver that verifies signatures refuses all of them.
    """
    there = _date_of(head)
    if there is None:
        return []
    difference = there - from_microseconds(wall_microseconds())
    if abs(difference) <= CLOCK_WARNING:
        return []
    direction = "ahead of" if difference > timedelta(0) else "behind"
    seconds = round(abs(difference).total_seconds())
    seen = f"the clock of gateway {name} at {place} is {seconds} seconds {direction} the clock of this host"
    return [warning(Code.GATEWAY_CLOCK_DIFFERS, seen, "chronyc makestep", name)]


def _date_of(head: bytes) -> datetime | None:
    for line in head.split(b"\r\n")[1:]:
        name, _, value = line.partition(b":")
        if name.strip().lower() == b"date":
            try:
                found = parsedate_to_datetime(value.decode("ascii").strip())
            except (ValueError, UnicodeDecodeError):
                return None
            # For the zone `-0000`, which also means UTC, Python returns a time without a zone.
            return found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC)
    return None
