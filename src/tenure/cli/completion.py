"""Shell completion: `tenure completion` prints the script of a shell, and the script asks `tenure` for candidates.

The script runs `tenure` with the variable `_TENURE_COMPLETION` set to the name of the shell, and the line up to the
cursor as the only argument. `tenure` prints one candidate per line: commands, flags and values. The names of jobs,
leases and gateways come from the service, if it answers within SECONDS. If `tenure` cannot read the names, it prints no
candidates and no error message, because the shell has no place to show one.
"""

import shlex
import sys
from collections.abc import Callable, Iterable
from typing import Annotated, Any, NamedTuple

import typer

from tenure.errors import ConfigurationError, TenureError

SECONDS = 1.0
"""How long a request for names may take: a user has pressed Tab and is waiting."""
NAMES_MAX = 200

SCRIPTS = {
    "bash": """\
_tenure() {
    local line
    COMPREPLY=()
    while IFS= read -r line; do
        COMPREPLY+=("$line")
    done < <(_TENURE_COMPLETION=bash "${COMP_WORDS[0]}" "${COMP_LINE:0:COMP_POINT}" 2>/dev/null)
}
complete -o default -F _tenure tenure
""",
    "zsh": """\
#compdef tenure
_tenure() {
    local -a found
    local line
    for line in "${(@f)$(_TENURE_COMPLETION=zsh "${words[1]}" "${words[1,CURRENT]}" 2>/dev/null)}"; do
        [[ -n "$line" ]] && found+=("$line")
    done
    if (( $#found )); then
        _describe tenure found
    else
        _files
    fi
}
if [[ "$funcstack[1]" == _tenure ]]; then
    _tenure "$@"
else
    compdef _tenure tenure
fi
""",
    "fish": """\
function __tenure_complete
    set -l found (env _TENURE_COMPLETION=fish tenure (commandline -cp) 2>/dev/null)
    if test (count $found) -gt 0
        printf '%s\\n' $found
    else
        __fish_complete_path (commandline -ct)
    end
end
complete -c tenure -f -a '(__tenure_complete)'
""",
}


def completion(shell: Annotated[str, typer.Argument(help="bash, zsh or fish.", metavar="SHELL")]) -> None:
    """Print the script that makes a shell complete commands, flags and names.

    Write the script once to the file from which your shell loads completions. The names of jobs, leases and gateways
    come from the service, if it answers within a second.

    tenure completion bash > ~/.local/share/bash-completion/completions/tenure
    tenure completion zsh > /usr/local/share/zsh/site-functions/_tenure
    tenure completion fish > ~/.config/fish/completions/tenure.fish
    """
    if shell not in SCRIPTS:
        raise ConfigurationError(f"shell: must be {', '.join(SCRIPTS)}")
    typer.echo(SCRIPTS[shell], nl=False)


class Candidate(NamedTuple):
    value: str
    help: str = ""


def print_candidates(shell: str, line: str) -> None:
    """Print the candidates for the end of a line, as the script of this shell expects them."""
    words = _words(line)
    incomplete = words[-1]
    for candidate in candidates(words):
        sys.stdout.write(f"{_formatted(shell, candidate, incomplete)}\n")


def candidates(words: list[str]) -> list[Candidate]:
    """Return the candidates for the last word."""
    from tenure.cli.main import COMMANDS  # noqa: PLC0415 - a cycle: main imports this module, too

    *before, incomplete = words[1:] or [""]
    if not before:
        found = [Candidate(name, entry.summary) for name, entry in COMMANDS.items()]
        found += [Candidate("--help"), Candidate("--version")]
    else:
        found = _in_command(before, incomplete)
    return [each for each in found if each.value.startswith(incomplete)]


def _words(line: str) -> list[str]:
    """The words of a line; the last one is empty if the line ends with a blank."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=False)
    lexer.whitespace_split = True
    lexer.commenters = ""
    try:
        words = list(lexer)
    except ValueError:  # an open quote
        words = line.split()
    return [*words, ""] if line[-1:].isspace() or not words else words


def _formatted(shell: str, candidate: Candidate, incomplete: str) -> str:
    if shell == "bash":
        # For bash a colon ends a word, so bash expects only the part after the colon.
        return candidate.value[incomplete.rfind(":") + 1 :]
    if shell == "fish":
        return f"{candidate.value}\t{candidate.help}" if candidate.help else candidate.value
    escaped = candidate.value.replace("\\", "\\\\").replace(":", "\\:")
    return f"{escaped}:{candidate.help}" if candidate.help else escaped


def _in_command(before: list[str], incomplete: str) -> list[Candidate]:
    from tenure.cli.main import COMMANDS, load_command  # noqa: PLC0415

    if before[0] not in COMMANDS:
        return []
    command, path, rest = load_command(before[0]), before[:1], before[1:]
    inner = getattr(command, "commands", {})
    if rest and rest[0] in inner:
        command, path, rest, inner = inner[rest[0]], before[:2], rest[1:], {}
    options = {flag: each for each in command.params if each.param_type_name == "option" for flag in each.opts}
    if rest and rest[-1] in options and not options[rest[-1]].is_flag:
        return _values(path, rest[-1], options[rest[-1]], before)
    if incomplete.startswith("-"):
        return [Candidate(flag, _first(each.help)) for flag, each in options.items() if _may_follow(each, flag, rest)]
    if inner and not rest:
        return [Candidate(name, each.get_short_help_str(100)) for name, each in inner.items()]
    argument = _argument(command, options, rest)
    return [] if argument is None else _values(path, argument.metavar or "", argument, before)


def _may_follow(option: Any, flag: str, rest: list[str]) -> bool:
    return not option.hidden and flag not in rest


def _first(text: str | None) -> str:
    return (text or "").partition(".")[0].partition("  [")[0]


def _argument(command: Any, options: dict[str, Any], rest: list[str]) -> Any:
    """The argument to which the next word would belong."""
    given, skip = 0, False
    for word in rest:
        if skip:
            skip = False
        elif word in options:
            skip = not options[word].is_flag
        elif not word.startswith("-"):
            given += 1
    arguments = [each for each in command.params if each.param_type_name == "argument"]
    if given < len(arguments):
        return arguments[given]
    return arguments[-1] if arguments and arguments[-1].nargs != 1 else None


# Values.

STATES: dict[str, tuple[str, ...]] = {
    "sessions list": ("created", "active", "closing", "closed"),
    "sessions end": ("created", "active"),
    "submissions list": ("pending", "delivered", "failed", "cancelled"),
    "submissions retry": ("pending", "failed", "cancelled"),
    "submissions cancel": ("pending", "failed"),
}
"""The values of `--state`, by command."""
CLOSE_REASONS = (
    "UPGRADED",
    "EXPIRED",
    "LEASE_EXPIRED",
    "IDLE_TIMEOUT",
    "STOPPED",
    "TERMINATED",
    "EVICTED",
    "DISCONNECTED",
    "SHUTDOWN",
    "FAILED",
)
FIXED: dict[str, tuple[str, ...]] = {
    "--kind": ("1", "2", "3"),
    "--close-reason": CLOSE_REASONS,
    "--group-by": ("tenant", "capacity", "user", "kind", "session"),
    "--when-full": ("reject", "evictOldest"),
    "--type": ("opened", "upgraded", "closed"),
    "--order": ("newest", "lapse"),
    "--role": ("client", "reader", "operator"),
    "--log-level": ("debug", "info", "warning", "error"),
    "--profile": ("capacity", "transcription", "playback"),
    "SHELL": tuple(SCRIPTS),
}


def _values(path: list[str], name: str, _parameter: Any, words: list[str]) -> list[Candidate]:
    """Return the candidates for a value. `name` is a flag, or the metavar of an argument."""
    if name == "--state":
        return [Candidate(state) for state in STATES.get(" ".join(path), ())]
    if name in FIXED:
        return [Candidate(value) for value in FIXED[name]]
    if name == "--context" or path[0] == "contexts":
        return _contexts() if name in ("--context", "NAME") else []
    of_service = {"JOB": _jobs, "LEASE": _leases, "--gateway": _gateways}.get(name)
    return [] if of_service is None else _of_service(of_service, words)


def _contexts() -> list[Candidate]:
    from tenure.cli.contexts import read_contexts  # noqa: PLC0415

    try:
        return [Candidate(each.name, each.url) for each in read_contexts().by_name.values()]
    except TenureError:
        return []


def _of_service(read: Callable[[Any], Iterable[str]], words: list[str]) -> list[Candidate]:
    from tenure.cli.service import Service, target_of  # noqa: PLC0415

    given = {flag: _given(flag, words) for flag in ("--url", "--key", "--context")}
    try:
        target = target_of(given["--url"], given["--key"], given["--context"])
        with Service(target, timeout=SECONDS, retries=0) as service:
            return [Candidate(name) for name in read(service.client)]
    except Exception:  # noqa: BLE001 - the shell has no place to show an error
        return []


def _given(flag: str, words: list[str]) -> str | None:
    """Return the value of a flag, which is the next word or follows `=` in the same word."""
    for word, following in zip(words, [*words[1:], None], strict=True):
        if word == flag:
            return following
        if word.startswith(f"{flag}="):
            return word.removeprefix(f"{flag}=")
    return None


def _jobs(client: Any) -> Iterable[str]:
    return [job.name for job in client.jobs.list(limit=NAMES_MAX).first().jobs]


def _leases(client: Any) -> Iterable[str]:
    return [lease.name for lease in client.leases.list(limit=NAMES_MAX).first().leases]


def _gateways(client: Any) -> Iterable[str]:
    from tenure.cli.overview import Metrics  # noqa: PLC0415

    return [name for name in Metrics(client.metrics()).by("tenure_submissions_pending", "gateway") if name != "other"]
