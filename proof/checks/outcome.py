"""The outcome of a check: the number of facts that it compared, and its findings."""

from typing import NamedTuple

FINDINGS_MAX = 20


class Outcome(NamedTuple):
    checked: int
    """How many facts were compared. The report shows this number: a check that compared nothing proves nothing."""
    findings: list[str]
    """A sentence for each broken promise, at most FINDINGS_MAX. If there are more, the last entry says how many."""


class Findings:
    """Collects the facts and findings of one check."""

    def __init__(self) -> None:
        self._checked = 0
        self._findings: list[str] = []
        self._more = 0

    def expect(self, holds: object, finding: str) -> None:
        self._checked += 1
        if not holds:
            self.add(finding)

    def add(self, finding: str) -> None:
        if len(self._findings) < FINDINGS_MAX:
            self._findings.append(finding)
        else:
            self._more += 1

    def outcome(self) -> Outcome:
        more = [f"… and {self._more} more"] if self._more else []
        return Outcome(self._checked, self._findings + more)
