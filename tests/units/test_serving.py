"""The limit on the open files of a process, and the number of connections that this limit allows."""

import resource

import pytest

from tenure.server.process import FILES_RESERVED, FILES_WANTED, allow_many_connections, connections_possible


def test_server_raises_open_file_limit_to_wanted_number_or_hard_limit() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = FILES_WANTED if hard == resource.RLIM_INFINITY else min(FILES_WANTED, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    try:
        allow_many_connections()
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (wanted, hard)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ((256, 2 * FILES_WANTED), (FILES_WANTED, 2 * FILES_WANTED)),
        ((256, resource.RLIM_INFINITY), (FILES_WANTED, resource.RLIM_INFINITY)),
        ((2 * FILES_WANTED, 2 * FILES_WANTED), (2 * FILES_WANTED, 2 * FILES_WANTED)),
        ((resource.RLIM_INFINITY, resource.RLIM_INFINITY), (resource.RLIM_INFINITY, resource.RLIM_INFINITY)),
    ],
)
def test_server_raises_open_file_limit_only_as_far_as_wanted(
    monkeypatch: pytest.MonkeyPatch, before: tuple[int, int], after: tuple[int, int]
) -> None:
    """The limits are simulated, because a process cannot always raise its hard limit."""
    limits = {resource.RLIMIT_NOFILE: before}
    monkeypatch.setattr(resource, "getrlimit", limits.__getitem__)
    monkeypatch.setattr(resource, "setrlimit", limits.__setitem__)
    allow_many_connections()
    assert limits == {resource.RLIMIT_NOFILE: after}


@pytest.mark.parametrize(
    ("files", "connections"),
    [
        (resource.RLIM_INFINITY, 4096),
        (65_536, 4096),
        (4096 + FILES_RESERVED, 4096),
        (1024, 1024 - FILES_RESERVED),
        (FILES_RESERVED, 1),
    ],
)
def test_connections_leave_some_open_files_for_other_uses(
    monkeypatch: pytest.MonkeyPatch, files: int, connections: int
) -> None:
    """If connections used all open files, an instance could not even accept a connection in order to refuse it."""
    monkeypatch.setattr(resource, "getrlimit", lambda _: (files, files))
    assert connections_possible(4096) == connections
