"""
Who may import whom, as a function from source text to complaints.

Everything is an import here, wherever it stands: in a function, under `if TYPE_CHECKING`. A fence
is about what a module knows, not about when it is loaded.
"""

import ast
from collections.abc import Iterator

# What `livetree.core` and `livetree.formats` may take of the standard library. A module belongs
# here if it computes: it waits for nothing, reads no clock, draws no random numbers, sees no files.
PURE = {
    *("__future__", "abc", "base64", "binascii", "bisect", "codecs", "collections", "contextlib"),
    *("copy", "csv", "dataclasses", "datetime", "decimal", "difflib", "enum", "fractions"),
    *("functools", "graphlib", "hashlib", "heapq", "hmac", "html", "io", "itertools", "json"),
    *("keyword", "math", "operator", "re", "reprlib", "statistics", "string", "struct"),
    *("textwrap", "types", "typing", "unicodedata", "urllib.parse", "uuid", "weakref"),
    *("zipfile", "zlib"),
}
# What those modules offer all the same: a clock, chance, files.
IMPURE = {
    *("date.today", "datetime.now", "datetime.today", "datetime.utcnow"),
    *("uuid.getnode", "uuid.uuid1", "uuid.uuid4", "uuid.uuid6", "uuid.uuid7"),
    *("codecs.open", "io.FileIO", "io.open"),
}
IMPURE_BUILTINS = {"breakpoint", "input", "open", "print"}

# The rooms of the server, and what each may take of the others.
ROOMS = {
    "topics": (),
    "hub": (),
    "storage": ("topics.ports",),
    "bus": ("topics.ports",),
    "gateway": ("topics", "hub"),
    "http": ("topics", "hub"),
}
# The rooms that `app` alone joins: of these any other module knows one at most.
WIRED = ("bus", "gateway", "hub", "http", "storage")
ROOMLESS = ("config", "metrics")
COMMAND_LINE = ("cli", "__main__")


def complaints(module: str, source: str) -> list[str]:
    """
    Tell what is wrong with a module's imports; nothing, if the list is empty.

    The `__init__` of a package is given under its full name, as in `livetree.core.__init__`.
    """
    tree = ast.parse(source)
    imports = sorted(set(imported_names(module, tree)))
    found: list[str] = []
    if is_in(module, "livetree.core", "livetree.formats"):
        found += purity(tree, imports)
    if is_in(module, "livetree"):
        found += sdk(module, imports)
    elif is_in(module, "livetree_server"):
        found += server(module, imports)
    return [f"{module}: {complaint}" for complaint in found]


def is_in(name: str, *packages: str) -> bool:
    return any(name == package or name.startswith(f"{package}.") for package in packages)


def imported_names(module: str, tree: ast.Module) -> Iterator[str]:
    """Yield what is imported by absolute name; for `from a import b` that is `a.b`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = module.split(".")[: -node.level] if node.level else []
            origin = ".".join([*above, *filter(None, [node.module])])
            yield from (f"{origin}.{alias.name}" for alias in node.names)


def purity(tree: ast.Module, imports: list[str]) -> Iterator[str]:
    """Complain of what is more than computing."""
    for name in imports:
        if name in IMPURE or not is_in(name, "msgspec", "livetree", "livetree_server", *PURE):
            yield f"imports {name}, which is not pure"
    for node in ast.walk(tree):
        match node:
            case ast.AsyncFunctionDef() | ast.AsyncFor() | ast.AsyncWith() | ast.Await():
                yield f"line {node.lineno} is asynchronous"
            case ast.comprehension(is_async=1, target=target):
                yield f"line {target.lineno} is asynchronous"
            case ast.Call(func=ast.Name(id=name)) if name in IMPURE_BUILTINS:
                yield f"line {node.lineno} calls {name}, which is not pure"
            case ast.Attribute():
                name = ".".join(ast.unparse(node).split(".")[-2:])
                if name in IMPURE:
                    yield f"line {node.lineno} uses {name}, which is not pure"


def sdk(module: str, imports: list[str]) -> Iterator[str]:
    """Complain of imports by a module of `livetree`."""
    for name in imports:
        if is_in(name, "livetree_server"):
            yield f"imports {name}: the SDK is installed without the server"
        if not is_in(name, "livetree") or is_in(module, "livetree.__init__", "livetree.testing"):
            continue
        if is_in(module, "livetree.core"):
            if not is_in(name, "livetree.core"):
                yield f"imports {name}: the core takes nothing of the rest"
        elif is_in(module, "livetree.formats"):
            if not is_in(name, "livetree.core", "livetree.formats"):
                yield f"imports {name}: formats take only the core"
        # Client, mirror, bots, and what they may be split into.
        elif name == "livetree" or is_in(name, "livetree.formats", "livetree.testing"):
            yield f"imports {name}: of the rest this takes only the core"


def server(module: str, imports: list[str]) -> Iterator[str]:
    """Complain of imports by a module of `livetree_server`."""
    here = module.removeprefix("livetree_server.")
    room = here.partition(".")[0]
    yield from use_of_the_sdk(room, imports)

    theirs = [name.removeprefix("livetree_server.") for name in imports if is_server(name)]
    if room not in ("app", *COMMAND_LINE) and any(is_in(name, "app") for name in theirs):
        yield "imports the app: only the cli does"
    if room in ROOMS:
        for name in theirs:
            if is_in(name, *ROOMS) and not is_in(name, room, *ROOMS[room]):
                yield f"imports {name}: of the other rooms this takes {ROOMS[room] or 'none'}"
        return
    known = sorted({name.partition(".")[0] for name in theirs} & ROOMS.keys())
    if room in ROOMLESS and known:
        yield f"imports {known}: this is what the rooms stand on"
    if room != "app" and len(joined := [name for name in known if name in WIRED]) > 1:
        yield f"joins {joined}: only the app does"


def use_of_the_sdk(room: str, imports: list[str]) -> Iterator[str]:
    """Complain of what a room of the server takes of `livetree`."""
    parts = ["livetree.core"]
    if room not in ROOMS or room == "http":  # a topic comes in and goes out in a file
        parts += ["livetree.formats"]
    if room in COMMAND_LINE:
        parts += ["livetree.client", "livetree.live_topic", "livetree.changes", "livetree.bots"]
    for name in imports:
        if is_in(name, "livetree") and not is_in(name, *parts):
            yield f"imports {name}: of the SDK this takes {parts}"
        if room == "hub" and is_in(name, "livetree.core.tree"):
            yield f"imports {name}: the hub sees bytes, never trees"


def is_server(name: str) -> bool:
    return name.startswith("livetree_server.")
