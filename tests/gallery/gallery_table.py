"""The gallery's table in Markdown; FIGURES.md has it with the usual answers left out."""

from __future__ import annotations

from typing import Any

HEAD = ["script", "steps seen by", "false alarms", "SIGKILL", "SIGSTOP", "rank killed", "out of memory", "NaN"]
HEAD += ["resumed from", "lost steps"]
KINDS = ("kill", "stop", "rank", "oom", "nan")


def write_table(results: list[dict[str, Any]]) -> str:
    """Return the results as a table, failures in words."""
    lines = ["| " + " | ".join(HEAD) + " |", "|---" * len(HEAD) + "|"]
    return "\n".join(lines + ["| " + " | ".join(_cells(night)) + " |" for night in results])


def _cells(night: dict[str, Any]) -> list[str]:
    wounds = {wound["kind"]: wound for wound in night["wounds"]}
    lost = dict(zip(wounds, night["lost"], strict=True))
    seen = night["hooked"].replace(": steps", " hooks")
    cells = [night["title"], seen or "-", str(len(night["false_alarms"]))]
    cells += [_reported(wounds.get(kind)) for kind in KINDS]
    cells.append(_resumed(list(wounds.values())))
    counts = {word: list(lost.values()).count(word) for word in ("right", "unknown", "wrong", "unchecked")}
    cells.append(", ".join(f"{count} {word}" for word, count in counts.items() if count) or "-")
    if night["problem"]:
        cells[1] = f"{cells[1]}; {night['problem'][:120]}"
    return [cell.replace("|", "/") for cell in cells]


def _reported(wound: dict[str, Any] | None) -> str:
    if wound is None:
        return "-"
    if not wound["reported"]:
        return "**not told**"
    warned = f" (warned of after {wound['warned_s']:.0f} s)" if wound.get("warned_s") else ""
    return f"{wound['reported']}, {wound['found_s']:.0f} s{warned}" + (
        f"; **{wound['problem'][:80]}**" if wound["problem"] else ""
    )


def _resumed(wounds: list[dict[str, Any]]) -> str:
    places = {_place(wound["resumed_from"]) for wound in wounds if wound["reported"]}
    return ", ".join(sorted(places)) or "-"


def _place(path: str | None) -> str:
    if path is None:
        return "beginning"
    return "snapshots" if path.startswith("snapshots/") else path
