"""A batch is executed in rounds, so that requests on one session share a result only if their scopes are equal."""

from collections.abc import Sequence

import msgspec

from tenure.batching.rounds import in_rounds, run_in_rounds
from tenure.domain.scope import EVERYTHING, Scope

OURS, THEIRS = Scope("ours"), Scope("theirs")


class Asked(msgspec.Struct, frozen=True):
    session_id: str
    scope: Scope


def test_batch_of_unbound_callers_is_one_round() -> None:
    asked = [Asked("a", EVERYTHING), Asked("a", Scope()), Asked("b", EVERYTHING)]
    assert in_rounds(asked) == [asked]


def test_round_has_one_scope_per_session() -> None:
    asked = [Asked("a", OURS), Asked("a", THEIRS), Asked("b", THEIRS), Asked("a", OURS), Asked("a", EVERYTHING)]
    assert in_rounds(asked) == [[asked[0], asked[2], asked[3]], [asked[1]], [asked[4]]]


async def test_each_caller_gets_the_result_of_its_own_round() -> None:
    asked = [Asked("a", OURS), Asked("a", THEIRS), Asked("b", THEIRS), Asked("a", OURS)]
    rounds: list[Sequence[Asked]] = []

    async def run(requests: Sequence[Asked]) -> Sequence[str]:
        rounds.append(requests)
        return [f"{request.session_id} of {request.scope.tenant}" for request in requests]

    assert await run_in_rounds(asked, run) == ["a of ours", "a of theirs", "b of theirs", "a of ours"]
    assert len(rounds) == 2
