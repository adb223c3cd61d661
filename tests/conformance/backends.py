"""What cases can be run through, by name."""

from collections.abc import Callable
from functools import partial

from .backend import Backend
from .core_backend import CoreBackend
from .raw_store import StoreBackend
from .runner import Case
from .server_backend import ServerBackend

Make = Callable[[], Backend]


def core(case: Case) -> Make:
    """Return what makes the core; over a store for cases that write to one."""
    return StoreBackend if writes_past_rules(case) else CoreBackend


def server(case: Case) -> Make:
    """Return what makes a running server."""
    return partial(ServerBackend, is_raw=writes_past_rules(case))


def writes_past_rules(case: Case) -> bool:
    """Tell whether a case writes to the store itself."""
    return any(step["op"] == "store.raw" for step in case["when"])


BACKENDS: dict[str, Callable[[Case], Make]] = {"core": core, "server": server}
