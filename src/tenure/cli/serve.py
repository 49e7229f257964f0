"""`tenure serve`: starts the service."""

from typing import Annotated

import typer

from tenure.cli.flags import ConfigFlag, DatabaseFlag, load_settings
from tenure.telemetry.logs import configure_logs


def serve(
    host: Annotated[str | None, typer.Option(help="The address to listen on. [127.0.0.1]")] = None,
    port: Annotated[str | None, typer.Option(help="The port to listen on. [8080]")] = None,
    database: DatabaseFlag = None,
    profile: Annotated[
        str | None, typer.Option(help="A set of defaults: capacity, transcription or playback. [capacity]")
    ] = None,
    workers: Annotated[str | None, typer.Option(help="The number of processes; each is an instance. [1]")] = None,
    prefix: Annotated[str | None, typer.Option(help="Serve the API below this path, for example /api/v3.")] = None,
    insecure: Annotated[
        bool | None,
        typer.Option("--insecure", help="Allow any address without a key. Every client has full access."),
    ] = None,
    tls_certificate: Annotated[
        str | None, typer.Option(help="Serve HTTPS with the certificate chain in this PEM file.")
    ] = None,
    tls_key: Annotated[str | None, typer.Option(help="The PEM file with the private key of the certificate.")] = None,
    log_level: Annotated[
        str | None, typer.Option(help="The lowest level that is logged: debug, info, warning or error. [info]")
    ] = None,
    config: ConfigFlag = None,
) -> None:
    """Start the service. It migrates the database schema before it serves requests."""
    settings = load_settings(
        config,
        host=host,
        port=port,
        database=database,
        profile=profile,
        workers=workers,
        prefix=prefix,
        insecure=insecure,
        tls_certificate=tls_certificate,
        tls_key=tls_key,
        log_level=log_level,
    )
    configure_logs(settings.logs.level)
    from tenure.server.workers import serve as run  # noqa: PLC0415 - other commands need no server

    run(settings)
