"""From a chunk to its body, and what is withheld rather than sent."""

from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Any

import msgspec
import pytest

from tenure.errors import DatabaseUnavailable, LeaseLost
from tenure.model.leases import Fence
from tenure.model.submissions import Contract, Parcel
from tenure.model.usage import Chunk, Life, Seal, Window
from tenure.usage.formats import render
from tenure.usage.rendering import Renderer, Withheld
from tests.units.test_formats import INSIDE, THROUGHOUT, WINDOW, life

FENCE = Fence("submission-executor", "us", 7)
CONTRACT = Contract((5.0,), None, (409,), 10.0, "tenure")
CHUNK = Chunk(
    window_id=WINDOW.window_id,
    chunk=1,
    first_session_id=THROUGHOUT.session_id,
    last_session_id=INSIDE.session_id,
    sessions=2,
    usage_millionths=78,
    submission_id="first",
)
OTHER = msgspec.structs.replace(
    CHUNK, chunk=2, sessions=1, usage_millionths=69, submission_id="second", first_session_id=life(4).session_id
)


class UsageStore:
    """What the renderer reads and writes, in memory."""

    def __init__(self) -> None:
        self.chunks: dict[str, tuple[Window, Chunk]] = {"first": (WINDOW, CHUNK), "second": (WINDOW, OTHER)}
        self.lives: dict[int, Sequence[Life]] = {1: [THROUGHOUT, INSIDE], 2: [life(4)]}
        self.seals: dict[str, bytes] = {}
        self.fences: list[Fence] = []
        self.trouble: Exception | None = None
        self.slow: Exception | None = None

    async def find_chunks(self, submission_ids: Sequence[str]) -> Sequence[tuple[Window, Chunk]]:
        if self.trouble is not None:
            raise self.trouble
        return [self.chunks[each] for each in reversed(submission_ids) if each in self.chunks]

    async def read_lives(self, window: Window, chunk: Chunk) -> Sequence[Life]:
        assert window == self.chunks[str(chunk.submission_id)][0]
        if self.slow is not None:
            raise self.slow
        return self.lives[chunk.chunk]

    async def seal_chunks(self, fence: Fence, seals: Sequence[Seal]) -> Mapping[str, bool]:
        if self.trouble is not None:
            raise self.trouble
        self.fences.append(fence)
        known = [each for each in seals if each.submission_id in self.chunks]
        return {
            each.submission_id: self.seals.setdefault(each.submission_id, each.digest) == each.digest for each in known
        }


@pytest.fixture
def store() -> UsageStore:
    return UsageStore()


@pytest.fixture
def renderer(store: UsageStore) -> Renderer:
    return Renderer(store)  # type: ignore[arg-type]


def parcel(submission_id: str = "first", usage_format: str = "tenure") -> Parcel:
    return Parcel(submission_id, f"key of {submission_id}", b"", msgspec.structs.replace(CONTRACT, format=usage_format))


async def rendered(renderer: Renderer, *parcels: Parcel) -> Any:
    return await renderer.render(parcels)


# Rendering.


@pytest.mark.parametrize("usage_format", ["tenure", "cloudevents"])
async def test_renders_in_the_format_of_the_contract(renderer: Renderer, usage_format: str) -> None:
    bodies = await rendered(renderer, parcel(usage_format=usage_format))
    assert bodies == {"first": render(usage_format, WINDOW, [THROUGHOUT, INSIDE]).body}


async def test_renders_each_of_several_from_its_own_chunk(renderer: Renderer) -> None:
    bodies = await rendered(renderer, parcel(), parcel("second", "cloudevents"))
    assert bodies == {
        "first": render("tenure", WINDOW, [THROUGHOUT, INSIDE]).body,
        "second": render("cloudevents", WINDOW, [life(4)]).body,
    }


async def test_renders_the_same_bytes_twice(renderer: Renderer) -> None:
    assert await rendered(renderer, parcel()) == await rendered(renderer, parcel())


async def test_a_database_that_does_not_answer_at_all_ends_the_term(renderer: Renderer, store: UsageStore) -> None:
    store.trouble = DatabaseUnavailable("away")
    with pytest.raises(DatabaseUnavailable):
        await rendered(renderer, parcel())


async def test_what_takes_too_long_to_read_is_put_off_and_holds_nobody_up(
    renderer: Renderer, store: UsageStore
) -> None:
    store.slow = DatabaseUnavailable("the database did not answer within 30 seconds")
    (found,) = (await rendered(renderer, parcel())).values()
    assert found == "it could not be read: the database did not answer within 30 seconds"
    assert isinstance(found, Withheld)
    assert found.pause_seconds == 10


# Withholding.


async def withheld(renderer: Renderer, one: Parcel) -> str:
    """Why, if it is; and what comes beside it is not."""
    bodies = await rendered(renderer, one, parcel("second"))
    assert bodies["second"] == render("tenure", WINDOW, [life(4)]).body
    assert isinstance(bodies["first"], Withheld), bodies["first"]
    return str(bodies["first"])


async def test_withholds_what_has_no_chunk(renderer: Renderer, store: UsageStore) -> None:
    del store.chunks["first"]
    assert await withheld(renderer, parcel()) == "there is no chunk for it"


async def test_withholds_what_is_in_a_format_of_another_version(renderer: Renderer) -> None:
    assert await withheld(renderer, parcel(usage_format="x-2")) == "this version does not know the format x-2"


@pytest.mark.parametrize(
    "lives",
    [
        [THROUGHOUT],
        [],
        [THROUGHOUT, INSIDE, life(3, kind=2, before_microseconds=5, total_microseconds=6)],
        [THROUGHOUT, INSIDE._replace(kind=2)],
        [THROUGHOUT, INSIDE._replace(total_microseconds=24_700_000)],
    ],
    ids=["one is missing", "all are", "one that used nothing is more", "another kind", "another length"],
)
async def test_withholds_what_does_not_add_up_to_its_chunk(
    renderer: Renderer, store: UsageStore, lives: Sequence[Life]
) -> None:
    store.lives[1] = lives
    assert await withheld(renderer, parcel()) == "it does not add up to what its window was divided into"


# Sealing.


async def test_seals_what_is_sent_for_the_first_time(renderer: Renderer, store: UsageStore) -> None:
    assert await renderer.seal(FENCE, {"first": b"one", "second": b"two"}) == {}
    assert store.seals == {"first": sha256(b"one").digest(), "second": sha256(b"two").digest()}
    assert store.fences == [FENCE]


async def test_lets_pass_what_is_the_same_again(renderer: Renderer, store: UsageStore) -> None:
    store.seals["first"] = sha256(b"one").digest()
    assert await renderer.seal(FENCE, {"first": b"one"}) == {}


async def test_withholds_what_is_not_what_was_sealed(renderer: Renderer, store: UsageStore) -> None:
    store.seals["first"] = sha256(b"one").digest()
    told = await renderer.seal(FENCE, {"first": b"one ", "second": b"two"})
    assert told == {"first": "it is not what was rendered before its first attempt"}
    assert isinstance(told["first"], Withheld)


async def test_withholds_what_could_not_be_sealed(renderer: Renderer, store: UsageStore) -> None:
    """Its chunk went away since it was rendered."""
    del store.chunks["first"]
    assert list(await renderer.seal(FENCE, {"first": b"one", "second": b"two"})) == ["first"]


async def test_a_lost_lease_seals_nothing(renderer: Renderer, store: UsageStore) -> None:
    store.trouble = LeaseLost("another epoch")
    with pytest.raises(LeaseLost):
        await renderer.seal(FENCE, {"first": b"one"})
    assert store.seals == {}
