"""The route `GET /metrics`, for Prometheus."""

from collections.abc import Sequence

from tenure.access.grants import PUBLIC, READERS
from tenure.errors import Invalid
from tenure.http.answers import Answer
from tenure.http.pipeline import Call, Route
from tenure.telemetry.metrics import CONTENT_TYPE, Exposition


class MetricsRoutes:
    def __init__(self, exposition: Exposition, *, public: bool) -> None:
        self._exposition = exposition
        self._grants = PUBLIC if public else READERS

    def routes(self) -> Sequence[Route]:
        return [
            Route(
                method="GET",
                path="/metrics",
                handler=self.metrics,
                grants=self._grants,
                tag="operations",
                summary="Metrics in Prometheus' text format",
                description=(
                    "The metrics of all workers of the process group. If a worker does not respond within a second, "
                    "its `tenure_worker_up` is 0."
                ),
                answers={200: None},
                refusals=(Invalid,),
                unprefixed=True,
            ),
        ]

    async def metrics(self, _call: Call) -> Answer:
        return Answer(await self._exposition.text(), headers=((b"content-type", CONTENT_TYPE),))
