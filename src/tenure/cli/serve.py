"""`tenure serve`: starts the service."""

from typing import Annotated

import typer

from tenure.cli.flags import ConfigFlag, DatabaseFlag, load_settings


def serve(
    host: Annotated[
        str | None,
        typer.Option(
            help="The address to listen on. An address other than loopback requires an API key, an OIDC issuer or "
            "--insecure.  [127.0.0.1]",
            metavar="ADDRESS",
        ),
    ] = None,
    port: Annotated[
        str | None,
        typer.Option(
            help="The port to listen on; 0 picks a free one, which is written to the log.  [8080]", metavar="PORT"
        ),
    ] = None,
    database: DatabaseFlag = None,
    profile: Annotated[
        str | None,
        typer.Option(help="A set of defaults: capacity, transcription or playback.  [capacity]", metavar="NAME"),
    ] = None,
    workers: Annotated[
        str | None, typer.Option(help="The number of processes; each is an instance.  [1]", metavar="NUMBER")
    ] = None,
    prefix: Annotated[
        str | None, typer.Option(help="Serve the API below this path, such as /api/v3.", metavar="PATH")
    ] = None,
    insecure: Annotated[
        bool | None,
        typer.Option(
            "--insecure",
            help="Allow any address although no API key exists. Until the first key is created, every client that can "
            "reach the service has full access.",
        ),
    ] = None,
    tls_certificate: Annotated[
        str | None, typer.Option(help="Serve HTTPS with the certificate chain in this PEM file.", metavar="FILE")
    ] = None,
    tls_key: Annotated[
        str | None, typer.Option(help="The PEM file with the private key of the certificate.", metavar="FILE")
    ] = None,
    log_level: Annotated[
        str | None,
        typer.Option(help="The lowest level that is logged: debug, info, warning or error.  [info]", metavar="LEVEL"),
    ] = None,
    config: ConfigFlag = None,
) -> None:
    """Start the service.

    The service listens on its port, migrates the database schema, and then serves requests. For an address other than
    loopback, the command first waits for the database, and exits with code 2 if no API key was ever created. It skips
    this check with an OIDC issuer or `--insecure`. All other settings are in docs/configuration.md. For signals see
    docs/operating.md, for API keys docs/securing.md.

    tenure serve
    tenure serve --host 0.0.0.0 --workers 4 --database postgresql://tenure@db.example/tenure
    """
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
    from tenure.telemetry.logs import configure_logs  # noqa: PLC0415 - `--help` and completion need no server

    configure_logs(settings.logs.level)
    from tenure.server.workers import serve as run  # noqa: PLC0415

    run(settings)
