"""What the times mean: rows, ratios, targets; the JSON and the table. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.reshard.case import Case
    from benchmarks.reshard.rounds import Found

SCHEMA = 1
OF_RIVALS = 3.0  # asked for: as fast as the best of them, so many times
OF_LIMIT = 0.85  # and so much of what a thread of each target can copy


def to_json(case: Case, found: Sequence[Found], limit: Sequence[float]) -> dict[str, Any]:
    return {
        "case": case.name,
        "bytes": case.nbytes,
        "tensors": len(case.table),
        "sources": len(case.states["source"].ranks),
        "targets": len(case.states["target"].ranks),
        "limit_gb_per_s": _median(limit),
        "limits": list(limit),
        "rows": [_row(case, it, _best(found, "limit")) for it in found],
        "targets_asked": [
            _of_rivals(found),
            _of_limit(found),
        ],
    }


def _row(case: Case, found: Found, bare: Found | None) -> dict[str, Any]:
    median = found.median
    return {
        "way": found.way.name,
        "kind": found.way.kind,
        "version": found.version,
        "verified": found.right and found.first is not None,
        "first_s": found.first,
        "seconds": found.seconds,
        "median_s": median,
        "gb_per_s": case.nbytes / median / 1e9 if median else None,
        "of_limit": _ratio(found, bare),
        "reason": found.reason,
    }


def _ratio(found: Found | None, other: Found | None) -> float | None:
    """How fast, of the other: the median over the rounds, in each of which both had the machine as
    it then was. None where one of them was not measured in every round."""
    if not (found and other and found.median and other.median):
        return None
    if len(found.seconds) != len(other.seconds):
        return None
    return _median([theirs / own for own, theirs in zip(found.seconds, other.seconds)])


def _best(found: Sequence[Found], kind: str) -> Found | None:
    measured = [it for it in found if it.way.kind == kind and it.median]
    return min(measured, key=lambda it: it.median or 0.0, default=None)


def _of_rivals(found: Sequence[Found]) -> dict[str, Any]:
    ours, rival = _best(found, "ours"), _best(found, "rival")
    words = f"{ours.way.name}, of {rival.way.name}" if ours and rival else "not measured"
    return {
        "name": "rate, of the best rival's",
        "who": words,
        "asked": OF_RIVALS,
        "found": _ratio(ours, rival),
    }


def _of_limit(found: Sequence[Found]) -> dict[str, Any]:
    """Of copies between memory of the same kinds, by a thread of each target at the same time."""
    ours, bare = _best(found, "ours"), _best(found, "limit")
    words = f"{ours.way.name}, of {bare.way.name}" if ours and bare else "not measured"
    return {
        "name": "rate, of the copy limit",
        "who": words,
        "asked": OF_LIMIT,
        "found": _ratio(ours, bare),
    }


def table(result: dict[str, Any]) -> str:
    """Markdown, for a terminal and for docs/status.md."""
    head = (
        f"{result['case']}, {result['tensors']} tensors, {result['bytes'] / 1e6:.0f} MB to targets"
    )
    lines = [
        head,
        "",
        "| way | first | then (median) | GB/s | of the copy limit, by rounds | its syncs |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for row in result["rows"]:
        if row["median_s"] is None:
            lines.append(f"| {row['way']} | - | {row['reason'] or 'WRONG BYTES'} | - | - | - |")
            continue
        each = ", ".join(f"{it * 1e3:.3g}" for it in row["seconds"])
        share = "-" if row["of_limit"] is None else f"{row['of_limit']:.2f}"
        lines.append(
            f"| {row['way']} | {row['first_s'] * 1e3:.3g} ms | {row['median_s'] * 1e3:.3g} ms | "
            f"{row['gb_per_s']:.3g} | {share} | {each} |"
        )
    words = f"{result['targets']} threads of one process, on buffers of their own"
    lines += ["", f"{words}: {result['limit_gb_per_s']:.3g} GB/s"]
    for asked in result["targets_asked"]:
        if asked["found"] is not None:
            verdict = "met" if asked["found"] >= asked["asked"] else "MISSED"
            words = f"{asked['found']:.2f}, asked for {asked['asked']:g}: {verdict}"
            lines.append(f"{asked['name']} ({asked['who']}): {words}")
    return "\n".join(lines)


def _median(values: Sequence[float]) -> float | None:
    import statistics

    return statistics.median(values) if values else None
