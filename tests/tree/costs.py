"""What work costs, counted instead of timed: the same on every machine, busy or idle."""

import gc
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


def steps(work: Callable[[], Any]) -> int:
    """
    Count the bytecodes that a call runs.

    What C does in one of them isn't seen: look at `peak` for copies.

    """
    count = 0

    def trace(frame: Any, event: str, _: Any) -> Any:
        nonlocal count
        frame.f_trace_opcodes = True
        count += event == "opcode"
        return trace

    before = sys.gettrace()
    with no_collection():
        sys.settrace(trace)
        try:
            work()
        finally:
            sys.settrace(before)
    return count


def peak(work: Callable[[], Any]) -> int:
    """Count the bytes that a call has in use at its worst, over what there was before."""
    with no_collection():
        tracemalloc.start()
        try:
            before = tracemalloc.get_traced_memory()[0]
            work()
            return tracemalloc.get_traced_memory()[1] - before
        finally:
            tracemalloc.stop()


@contextmanager
def no_collection() -> Iterator[None]:
    """Keep the garbage collector out, and with it whoever listens to it."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@contextmanager
def shallow(frames: int) -> Iterator[None]:
    """Let calls nest only this much deeper than here."""
    depth, frame = 0, sys._getframe()
    while frame is not None:
        depth, frame = depth + 1, frame.f_back  # type: ignore[assignment]
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(depth + frames)
    try:
        yield
    finally:
        sys.setrecursionlimit(before)
