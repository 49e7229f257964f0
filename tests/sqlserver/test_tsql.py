"""The T-SQL that no server here can run is at least read: by a parser, and by rules that the promises rest on."""

import ast
import re
from collections.abc import Iterator

import pytest
from sqlfluff.core import FluffConfig, Linter

from tenure.store.store import BATCH_MAX
from tests.sqlserver import tsql

BATCHES = tsql.batches()
CALLS = {name: text for name, text in tsql.constants().items() if text.startswith("EXEC")}
TRANSACTIONS = {name: text for name, text in BATCHES.items() if "BEGIN TRANSACTION" in text}
SESSION_WRITES = {name: text for name, text in TRANSACTIONS.items() if "dbo.sessions" in text}

RULES = [
    "AL01", "AL02", "AL05", "AM01", "AM02", "AM05", "AM06", "CP01", "CV03", "CV05", "RF01", "RF02", "ST01",
    "ST03", "ST07",
]  # fmt: skip
"""Those of sqlfluff's rules that find mistakes; the others are about layout. (RF03 is not among them: it does not know
that a SET of a procedure has no table. AM04 is not: a session is returned whole, whatever columns it has by then.)"""

NEWER_THAN_2019 = (
    "LEAST", "GREATEST", "GENERATE_SERIES", "DATE_BUCKET", "DATETRUNC", "JSON_OBJECT", "JSON_ARRAY", "BIT_COUNT",
    "IS DISTINCT FROM", "IS NOT DISTINCT FROM", "APPROX_PERCENTILE_CONT", "STRING_AGG_DISTINCT",
)  # fmt: skip

READ = re.compile(r"(?:FROM|JOIN) dbo\.sessions AS \w+(?: WITH \((?P<hints>(?:[^()]|\([^()]*\))*)\))?")
WRITE = re.compile(r"UPDATE s SET|UPDATE dbo\.sessions|INSERT INTO dbo\.sessions")
CHECKED_LOCK = re.compile(r"EXEC (@\w+) = sys\.sp_getapplock [^;]*@LockOwner = 'Transaction'[^;]*; IF \1 < 0 THROW ")
LOCKED = "UPDLOCK, HOLDLOCK"
PASSED_OVER = "READCOMMITTEDLOCK, READPAST"
"""The one read inside a transaction that takes no lock: nobody else can be writing what it looks for."""


def inside(text: str) -> str:
    """What a batch does between the beginning of its transaction and the end of it."""
    return tsql.code(text).partition("BEGIN TRANSACTION;")[2].rpartition("COMMIT TRANSACTION;")[0]


def literals(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Strings that are used, with their lines: docstrings and the like stand alone."""
    alone = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in alone:
            yield node.lineno, node.value


@pytest.mark.parametrize("name", BATCHES)
def test_is_tsql(name: str) -> None:
    parsed = Linter(config=FluffConfig(overrides={"dialect": "tsql"})).parse_string(BATCHES[name])
    assert [str(violation) for violation in parsed.violations] == []


@pytest.mark.parametrize("name", BATCHES)
def test_has_no_lint(name: str) -> None:
    config = FluffConfig(overrides={"dialect": "tsql", "rules": ",".join(RULES)})
    linted = Linter(config=config).lint_string(BATCHES[name])
    assert [f"{each.line_no}: {each.rule_code()} {each.desc()}" for each in linted.get_violations()] == []


def test_finds_every_statement_of_the_module() -> None:
    known = " ".join(tsql.constants().values())
    strays = [
        (line, text)
        for line, text in literals(ast.parse(tsql.source()))
        if tsql.looks_like_sql(text) and tsql.without_parameters(text).strip() not in known
    ]
    assert strays == [], "a statement must be a constant of the module, or no test reads it"


@pytest.mark.parametrize("name", CALLS)
def test_calls_a_procedure_by_the_parameters_it_has(name: str) -> None:
    called = re.match(r"EXEC dbo\.(\w+) ", CALLS[name])
    assert called, CALLS[name]
    head = tsql.code(tsql.routines()[called[1]]).partition(" AS BEGIN")[0]
    assert re.findall(r"(@\w+) =", CALLS[name]) == re.findall(r"@\w+", head)


@pytest.mark.parametrize("name", tsql.routines())
def test_creates_one_thing_and_nothing_else(name: str) -> None:
    text = tsql.code(tsql.routines()[name])
    assert re.match(r"CREATE (FUNCTION|PROCEDURE) dbo\.", text), "must be the first statement of its batch"
    assert len(re.findall(r"\bCREATE\b", text)) == 1


@pytest.mark.parametrize("name", TRANSACTIONS)
def test_a_transaction_is_undone_by_any_error_and_waits_for_no_lock_without_a_limit(name: str) -> None:
    before = tsql.code(TRANSACTIONS[name]).partition("BEGIN TRANSACTION;")[0]
    assert "SET XACT_ABORT ON;" in before
    assert re.search(r"SET LOCK_TIMEOUT -?\d+;", before)


@pytest.mark.parametrize("name", SESSION_WRITES)
def test_a_write_begins_and_commits_in_one_batch_and_answers_afterwards(name: str) -> None:
    text = tsql.code(SESSION_WRITES[name])
    assert text.count("BEGIN TRANSACTION;") == text.count("COMMIT TRANSACTION;") == 1
    assert "SELECT" in text.rpartition("COMMIT TRANSACTION;")[2], "locks must not be held until the client has read"


@pytest.mark.parametrize("name", SESSION_WRITES)
def test_a_write_counts_no_rows(name: str) -> None:
    """A count would come before the answer, and the driver would take it for the answer."""
    assert "SET NOCOUNT ON;" in tsql.code(SESSION_WRITES[name]).partition("BEGIN TRANSACTION;")[0]


@pytest.mark.parametrize("name", SESSION_WRITES)
def test_locks_what_it_decides_on(name: str) -> None:
    reads = [read["hints"] or "" for read in READ.finditer(inside(SESSION_WRITES[name]))]
    targets = len(re.findall(r"UPDATE s SET", inside(SESSION_WRITES[name])))
    unlocked = [hints for hints in reads if not hints.startswith((LOCKED, PASSED_OVER))]
    assert sum(hints.startswith(LOCKED) for hints in reads) >= 2, reads
    assert len(unlocked) == targets, unlocked
    assert sum(hints.startswith(PASSED_OVER) for hints in reads) <= 1, reads


@pytest.mark.parametrize("name", SESSION_WRITES)
def test_locks_keys_before_rows(name: str) -> None:
    text = inside(SESSION_WRITES[name])
    assert 0 <= text.find("INDEX (sessions_live_key)") < text.find("INDEX (sessions_pkey)")


@pytest.mark.parametrize("name", SESSION_WRITES)
def test_holds_off_the_cut_before_anything_else(name: str) -> None:
    assert inside(SESSION_WRITES[name]).strip().startswith("EXEC dbo.tenure_hold_off_the_cut;")


@pytest.mark.parametrize("name", SESSION_WRITES)
def test_reads_the_clock_after_the_last_lock_and_before_the_first_write(name: str) -> None:
    text = inside(SESSION_WRITES[name])
    writes = [
        match.start() for match in re.finditer(r"UPDATE s SET|UPDATE dbo\.sessions|INSERT INTO dbo\.sessions", text)
    ]
    assert text.count("dbo.tenure_write_now()") == 1
    assert text.rfind(LOCKED) < text.find("dbo.tenure_write_now()") < min(writes)


@pytest.mark.parametrize("name", [name for name, text in BATCHES.items() if "sp_getapplock" in text])
def test_looks_at_the_code_of_a_lock_that_does_not_raise(name: str) -> None:
    text = tsql.code(BATCHES[name])
    checked = re.findall(
        r"EXEC (@\w+) = sys\.sp_getapplock [^;]*@LockOwner = 'Transaction'[^;]*; IF \1 < 0 THROW ", text
    )
    assert len(checked) == text.count("sp_getapplock")


def test_reads_the_clock_in_one_place() -> None:
    clocks = re.compile(r"\b(SYSUTCDATETIME|SYSDATETIME|SYSDATETIMEOFFSET|GETDATE|GETUTCDATE|CURRENT_TIMESTAMP)\b")
    assert [name for name, text in BATCHES.items() if clocks.search(tsql.code(text))] == ["tenure_now"]


@pytest.mark.parametrize("name", BATCHES)
def test_uses_nothing_newer_than_2019(name: str) -> None:
    text = tsql.code(BATCHES[name]).upper()
    assert [word for word in NEWER_THAN_2019 if re.search(rf"\b{word}\b", text)] == []


@pytest.mark.parametrize("name", BATCHES)
def test_says_nothing_before_its_answer(name: str) -> None:
    """PRINT, and the warning that a join hint inside FROM gives, would come before the rows."""
    assert re.findall(r"\bPRINT\b|\b(?:LOOP|HASH|MERGE) JOIN dbo", tsql.code(BATCHES[name])) == []


@pytest.mark.parametrize("name", BATCHES)
def test_adds_microseconds_in_steps_that_fit_an_int(name: str) -> None:
    added = re.findall(r"DATEADD\(MICROSECOND, ([^,]+),", tsql.code(BATCHES[name]))
    assert [number for number in added if not (number.isdecimal() or number.endswith("% 1000000"))] == []


def test_no_row_limit_cuts_a_full_batch_short() -> None:
    limits = [int(limit) for text in BATCHES.values() for limit in re.findall(r"TOP \((\d+)\)", text)]
    assert limits
    assert min(limits) >= BATCH_MAX
