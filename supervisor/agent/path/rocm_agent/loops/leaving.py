"""Reports that the loop that makes the steps was left: what a program does then, minutes or hours, is no late step.

For loops that no torch loader feeds, whose passes nothing else tells: they evaluate, save, draw a report or end there.
A thread looks from time to time at where the main thread is. A step that comes later ends the stage by itself.
"""

from __future__ import annotations

import ast
import sys
import threading
from types import CodeType, FrameType
from typing import Dict, Iterator, List, Optional, Set, Tuple

from rocm_agent import claim
from rocm_agent.fence import failed
from rocm_agent.layout import STEP, VALIDATE
from rocm_agent.recorder import Recorder

from .chain import FRAMES_MAX, is_opaque, is_planned
from .source import Sources

LOOK_EVERY_S = 4.0
"""Two looks come before a job at rest is taken for stuck (20 s), in a loop whose stages nothing reports."""
STEPPING, BETWEEN, LEFT = range(3)
"""Where a look finds the main thread: in a loop that steps, outside after steps, outside and none was made."""

Lines = Tuple[int, int]
"""The first and last line of a loop in its code."""


class LoopWatch:
    """Where the main thread is while steps are made, and whether it has left that."""

    def __init__(self) -> None:
        self.is_elsewhere = False
        """Whether steps are made in a loop that is not known: the next one is to be learned from."""
        self._stepping: Dict[CodeType, Set[Lines]] = {}
        self._around: Dict[CodeType, Set[Lines]] = {}
        self._steps_seen, self._found = 0, LEFT

    def learn(self, frame: FrameType) -> bool:
        """Take the loops around `frame`, which makes a step; return whether there are any."""
        self.is_elsewhere = False
        loops = list(_list_loops(frame))
        for known, found in ((self._stepping, loops[:1]), (self._around, loops[1:])):
            for code, lines in found:
                known.setdefault(code, set()).add(lines)
        return bool(loops)

    def look(self, recorder: Recorder, frame: Optional[FrameType]) -> None:
        """Report the stage validate where `frame`, the main thread's, is in no loop that steps, and none was made.

        A loop around counts as stepping where steps go on in it: some come again before the next look, or each comes
        by itself. A program that stepped at the last look, or made several steps and then none, has left its loop: it
        plays games, generates or evaluates, for minutes.
        """
        stack = list(_walk(frame))
        made, self._steps_seen = recorder.written - self._steps_seen, recorder.written
        before, self._found = self._found, LEFT if made == 0 else BETWEEN
        if _find(self._stepping, stack):
            self._found = STEPPING
        elif self._found == LEFT:
            if recorder.stage == STEP:
                recorder.stage, recorder.aside = VALIDATE, 0
        elif before == BETWEEN or (made == 1 and before == LEFT):
            self._widen(stack)
        else:
            self.is_elsewhere = not _find(self._around, stack)

    def _widen(self, stack: List[FrameType]) -> None:
        """Count the loops around as stepping: between two of its steps the training is there."""
        around = _find(self._around, stack)
        for code, lines in around:
            self._stepping.setdefault(code, set()).add(lines)
        self.is_elsewhere = not around


def begin(frame: FrameType) -> Optional[LoopWatch]:
    """Look from now on whether the loop around `frame` was left; None where there is none that can be read."""
    watch = LoopWatch()
    if threading.current_thread() is not threading.main_thread() or not watch.learn(frame):
        return None
    threading.Thread(target=_look_on, args=(watch,), name="rocm-agent-loop", daemon=True).start()
    return watch


def _look_on(watch: LoopWatch) -> None:
    main, never = threading.main_thread().ident, threading.Event()
    while not never.wait(LOOK_EVERY_S):
        recorder = claim.holding()
        if recorder is None or not claim.is_reporting(claim.GENERIC):
            return
        try:
            watch.look(recorder, sys._current_frames().get(main or 0))
        except Exception as error:
            failed("loops.leaving", error)
            return


def _list_loops(frame: FrameType) -> Iterator[Tuple[CodeType, Lines]]:
    """Yield the loops around what `frame` calls, innermost first; those of a file that cannot be read are left out."""
    sources = Sources()
    for current in _walk(frame):
        if is_planned(current):
            return
        found = None if is_opaque(current) else sources.find(current.f_code)
        if found is not None:
            spans = [_lines_of(node) for node in ast.walk(found[1]) if isinstance(node, (ast.For, ast.While))]
            for lines in sorted((lines for lines in spans if _is_within(current, lines)), reverse=True):
                yield current.f_code, lines


def _lines_of(loop: ast.stmt) -> Lines:
    last: ast.stmt = getattr(loop, "body", [loop])[-1]
    return loop.lineno, last.end_lineno or last.lineno


def _walk(frame: Optional[FrameType]) -> Iterator[FrameType]:
    for _ in range(FRAMES_MAX):
        if frame is None:
            return
        yield frame
        frame = frame.f_back


def _is_within(frame: FrameType, lines: Lines) -> bool:
    return lines[0] <= (frame.f_lineno or 0) <= lines[1]


def _find(known: Dict[CodeType, Set[Lines]], stack: List[FrameType]) -> List[Tuple[CodeType, Lines]]:
    """Return the known loops in which the frames of a stack are."""
    return [
        (frame.f_code, lines) for frame in stack for lines in known.get(frame.f_code, ()) if _is_within(frame, lines)
    ]
