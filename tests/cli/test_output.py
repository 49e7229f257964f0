"""Tables, times and JSON as commands print them."""

from datetime import timedelta

import pytest

from tenure.cli.output import (
    WIDTH_OF_PIPES,
    Cell,
    Column,
    JsonList,
    Value,
    clean,
    duration_text,
    id_cell,
    relative_text,
    table,
    text_cell,
    time_cell,
)
from tests.support.open_requests import NOON

ID = "0190b0a0-0000-7000-8000-0000000000c1"
COLUMNS = (Column("id"), Column("user", 1), Column("at", 2), Column("error", 3, can_be_cut=True), Column("n", 4))
ROW: list[Value] = [ID, id_cell(ID), time_cell(NOON, NOON + timedelta(seconds=5)), text_cell("x" * 60), 7]


def lines(columns: int) -> list[str]:
    return table(COLUMNS, [ROW], columns, coloured=False)


def test_wide_table_shows_everything() -> None:
    assert lines(WIDTH_OF_PIPES)[1] == f"{ID}  {ID}  2041-03-01T12:00:00Z (5 s ago)  {'x' * 60}  7"


def test_narrow_tables_shorten_cells_then_cut_or_omit_columns() -> None:
    assert lines(130)[1] == f"{ID}  …000000c1  5 s ago  {'x' * 60}  7"
    assert lines(100)[1] == f"{ID}  …000000c1  5 s ago  {'x' * 41}…"
    assert lines(60)[1] == f"{ID}  …000000c1  5 s ago"
    assert lines(50)[1] == f"{ID}  …000000c1"
    assert lines(10)[1] == ID
    for columns in range(36, 200):
        assert max(map(len, lines(columns))) <= columns, columns


def test_column_without_values_is_left_out_on_a_terminal_only() -> None:
    columns = (Column("id"), Column("reason", 1))
    assert table(columns, [["a", None]], 80, coloured=False) == ["id", "a"]
    assert table(columns, [["a", None]], WIDTH_OF_PIPES, coloured=False) == ["id  reason", "a        -"]


def test_numbers_are_right_aligned_and_colours_do_not_change_widths() -> None:
    rows: list[list[Value]] = [["a", 5, Cell("x", style="bad")], ["b", 1234, Cell("yy")]]
    assert table(("name", "count", "s"), rows, 80, coloured=False) == [
        "name  count  s",
        "a         5  x",
        "b      1234  yy",
    ]
    coloured = table(("name", "count", "s"), rows, 80, coloured=True)
    assert coloured[1] == "a         5  \x1b[31mx \x1b[0m"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (0.0123, "12 ms"),
        (0.9999, "1 s"),
        (42, "42 s"),
        (119, "119 s"),
        (120, "2 min"),
        (7169, "119 min"),
        (7200, "2 h"),
        (2 * 86_400, "2 days"),
        (30 * 86_400 - 1, "30 days"),
    ],
)
def test_durations_are_rounded_to_one_unit(seconds: float, text: str) -> None:
    assert duration_text(seconds) == text


def test_relative_times() -> None:
    assert relative_text(NOON + timedelta(seconds=42), NOON) == "in 42 s"
    assert relative_text(NOON, NOON + timedelta(minutes=3)) == "3 min ago"
    assert relative_text(NOON, NOON + timedelta(milliseconds=900)) == "now"


def test_control_characters_are_replaced_by_spaces() -> None:
    assert clean("\x1b[31mred\nline\x9b1m") == "[31mred line 1m"


def test_pages_of_a_list_are_printed_as_one_json_object(capsys: pytest.CaptureFixture[str]) -> None:
    with JsonList("groups") as printed:
        printed.add(b'{"from":"a","groups":[{"usage":0.10},{"usage":1e3}],"count":2,"nextCursor":"x"}')
        printed.add(b'{"from":"b","groups":[{"usage":0.000001}],"count":1,"nextCursor":null,"new":[1]}')
    groups = '[{"usage":0.10},{"usage":1e3},{"usage":0.000001}]'
    expected = f'{{"from":"a","groups":{groups},"count":3,"nextCursor":null,"new":[1]}}\n'
    assert capsys.readouterr().out == expected


def test_empty_list_is_valid_json(capsys: pytest.CaptureFixture[str]) -> None:
    with JsonList("jobs") as printed:
        printed.add(b'{"jobs":[],"count":0,"nextCursor":null}')
    assert capsys.readouterr().out == '{"jobs":[],"count":0,"nextCursor":null}\n'
