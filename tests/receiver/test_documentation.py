"""`docs/receiver.md` is complete: it names every fault, field and total, and its examples are valid."""

import re
from pathlib import Path
from typing import get_args

import msgspec
import pytest

from tenure.receiver.faults import Faults, Way, read_faults
from tenure.receiver.ledger import Entry, Totals

DOCUMENT = (Path(__file__).parents[2] / "docs" / "receiver.md").read_text(encoding="utf-8")
WAYS = get_args(Way)
FAULTS = re.findall(r"(?:-d|--fail) (?:'(.*)'|(\S+))$", DOCUMENT, re.MULTILINE)


@pytest.mark.parametrize("way", WAYS, ids=lambda way: str(way.__struct_config__.tag))
def test_fault_ways_are_documented_with_fields_and_defaults(way: type[msgspec.Struct]) -> None:
    (row,) = re.findall(rf"^\| `{way.__struct_config__.tag}` \|.*$", DOCUMENT, re.MULTILINE)
    own = [field for field in msgspec.structs.fields(way) if field.name not in ("weight", "counted")]
    shown = [f"`{field.encode_name}` {_shown(field.default)}" for field in own]
    assert [each for each in shown if each not in row] == []


def _shown(default: object) -> str:
    return f'`"{default}"`' if isinstance(default, str) else msgspec.json.encode(default).decode().removesuffix(".0")


@pytest.mark.parametrize("shape", [Faults, Totals, Entry])
def test_all_fields_are_documented(shape: type[msgspec.Struct]) -> None:
    names = [field.encode_name for field in msgspec.structs.fields(shape)]
    assert [name for name in names if f"`{name}`" not in DOCUMENT and name != "key"] == []


def test_documented_totals_example_has_all_fields() -> None:
    (shown,) = re.findall(r"```json\n(.*)\n```", DOCUMENT)
    assert list(msgspec.json.decode(shown)) == [field.name for field in msgspec.structs.fields(Totals)]


def test_documented_faults_are_valid() -> None:
    assert len(FAULTS) == 4
    for quoted, plain in FAULTS:
        read_faults(quoted or plain)
