"""Draws a run as SVG: load, latency, faults and the holder of each lease, on one axis of time."""

from collections import defaultdict
from collections.abc import Sequence
from math import log10
from statistics import quantiles
from xml.sax.saxutils import escape

from proof.history import Operation
from proof.run import Run

WIDTH, LEFT, RIGHT = 1200, 190, 20
LOAD_HEIGHT, LATENCY_HEIGHT, ROW, GAP = 110, 110, 15, 34
SLOWEST_MILLISECONDS = 10_000
COLOURS = ("#4e79a7", "#f28e2b", "#59a14f", "#b07aa1", "#76b7b2", "#edc948", "#9c755f", "#ff9da7")
STYLE = (
    "text{font:11px sans-serif;fill:#333}.t{font:bold 13px sans-serif}.g{stroke:#ddd}.ok{fill:#9ecae1}"
    ".bad{fill:#de2d26}.p50{fill:none;stroke:#3182bd;stroke-width:1.5}.p99{fill:none;stroke:#e6550d;stroke-width:1.5}"
    ".fault{fill:#de2d26;fill-opacity:.75}.back{fill:#fcae91}"
)


class _Canvas:
    def __init__(self, seconds: float) -> None:
        self._parts: list[str] = []
        self._seconds = max(seconds, 1)
        self.height = 30

    def x(self, second: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * min(max(second, 0), self._seconds) / self._seconds

    def text(self, x: float, y: float, text: str, kind: str = "", anchor: str = "start") -> None:
        self._parts.append(f'<text x="{x:.1f}" y="{y:.1f}" class="{kind}" text-anchor="{anchor}">{escape(text)}</text>')

    def bar(self, start: float, end: float, y: float, height: float, look: str, title: str = "") -> None:
        """`look` is a CSS class, or a colour that begins with `#`."""
        x, width = self.x(start), max(self.x(end) - self.x(start), 1.0)
        shown = f'fill="{look}"' if look.startswith("#") else f'class="{look}"'
        box = f'x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}"'
        self._parts.append(f"<rect {box} {shown}><title>{escape(title)}</title></rect>")

    def line(self, points: Sequence[tuple[float, float]], kind: str) -> None:
        text = " ".join(f"{self.x(second):.1f},{y:.1f}" for second, y in points)
        self._parts.append(f'<polyline points="{text}" class="{kind}"/>')

    def band(self, title: str, height: float) -> float:
        """Adds a band of this height below the others, writes its title, and returns the y of its upper edge."""
        top = self.height + GAP - 10
        self.text(8, top - 6, title, "t")
        self.height = int(top + height)
        return top

    def axis(self) -> None:
        step = next(step for step in (1, 2, 5, 10, 20, 60, 120, 300, 600) if self._seconds / step <= 20)
        for second in range(0, int(self._seconds) + 1, step):
            x = self.x(second)
            self._parts.insert(0, f'<line x1="{x:.1f}" x2="{x:.1f}" y1="30" y2="{self.height}" class="g"/>')
            self.text(x, self.height + 14, f"{second} s", anchor="middle")

    def svg(self, title: str) -> str:
        self.text(8, 20, title, "t")
        body = "\n".join(self._parts)
        size = f'viewBox="0 0 {WIDTH} {self.height + 24}" width="{WIDTH}" height="{self.height + 24}"'
        label = f'role="img" aria-label="{escape(title)}"'
        return f'<svg xmlns="http://www.w3.org/2000/svg" {size} {label}><style>{STYLE}</style>\n{body}\n</svg>\n'


def draw(run: Run) -> str:
    began_at = run.history.began_at
    last = max([run.history.ended_at, *(each.returned_at for each in run.history.operations)], default=began_at)
    canvas = _Canvas((last - began_at) / 1e6)
    seconds: defaultdict[int, list[Operation]] = defaultdict(list)
    for operation in run.history.operations:
        if operation.called_at >= began_at:
            seconds[(operation.called_at - began_at) // 1_000_000].append(operation)
    _load(canvas, seconds)
    _latency(canvas, seconds)
    _faults(canvas, run, began_at)
    _leaders(canvas, run, began_at)
    canvas.axis()
    findings = len(run.findings)
    verdict = "every promise held" if not findings else f"findings: {findings}"
    return canvas.svg(f"Seed {run.plan.seed}, {run.plan.instances} instances on {run.plan.engine}: {verdict}")


def _load(canvas: _Canvas, seconds: dict[int, list[Operation]]) -> None:
    most = max((len(each) for each in seconds.values()), default=1)
    top = canvas.band(f"Requests per second (up to {most}; red: 5xx, or no answer)", LOAD_HEIGHT)
    for second, operations in seconds.items():
        failed = sum(each.status == 0 or each.status >= 500 for each in operations)
        for count, look, below in ((len(operations) - failed, "ok", failed), (failed, "bad", 0)):
            height = LOAD_HEIGHT * count / most
            y = top + LOAD_HEIGHT * (1 - below / most) - height
            canvas.bar(second, second + 0.9, y, height, look, f"{count} requests")


def _latency(canvas: _Canvas, seconds: dict[int, list[Operation]]) -> None:
    top = canvas.band("Latency of answers: p50 (blue) and p99 (orange), 1 ms to 10 s", LATENCY_HEIGHT)
    lines: dict[str, list[tuple[float, float]]] = {"p50": [], "p99": []}
    for second, operations in sorted(seconds.items()):
        took = sorted(each.seconds * 1000 for each in operations if each.status)
        if len(took) > 1:
            cuts = quantiles(took, n=100)
            for name, value in (("p50", cuts[49]), ("p99", cuts[98])):
                share = log10(min(max(value, 1), SLOWEST_MILLISECONDS)) / 4
                lines[name].append((second + 0.5, top + LATENCY_HEIGHT * (1 - share)))
    for name, points in lines.items():
        canvas.line(points, name)


def _faults(canvas: _Canvas, run: Run, began_at: int) -> None:
    kinds = list(dict.fromkeys(fault.kind for fault in run.history.faults))
    top = canvas.band("Faults (pale: recovery)", ROW * len(kinds))
    for place, kind in enumerate(kinds):
        y = top + ROW * place
        canvas.text(LEFT - 6, y + 11, kind, anchor="end")
        for fault in run.history.faults:
            if fault.kind == kind:
                start, healed = (fault.began_at - began_at) / 1e6, (fault.healed_at - began_at) / 1e6
                if fault.recovered_at:
                    canvas.bar(healed, (fault.recovered_at - began_at) / 1e6, y + 3, ROW - 6, "back", "recovery")
                canvas.bar(start, healed, y + 1, ROW - 3, "fault", f"{fault.target}, {healed - start:.1f} s")


def _leaders(canvas: _Canvas, run: Run, began_at: int) -> None:
    """Draws a row for each lease, with a bar for each term in the colour of its holder."""
    names = sorted({term["name"] for term in run.tables.lease_history})
    holders: dict[str, int] = {}
    top = canvas.band("Leaders (a colour for each holder)", ROW * max(len(names), 1))
    for place, name in enumerate(names):
        y = top + ROW * place
        canvas.text(LEFT - 6, y + 11, name, anchor="end")
        for term in sorted(run.tables.lease_history, key=lambda row: row["acquired_at"]):
            if term["name"] == name:
                number = holders.setdefault(term["holder"], len(holders))
                end = run.history.ended_at if term["ended_at"] is None else term["ended_at"]
                start, until = (term["acquired_at"] - began_at) / 1e6, (end - began_at) / 1e6
                colour = COLOURS[number % len(COLOURS)]
                canvas.bar(start, until, y + 1, ROW - 3, colour, f"holder {number + 1}, epoch {term['epoch']}")
