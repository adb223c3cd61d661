"""Interprets cases: seeds what is given, carries out the steps, and checks what must then hold."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Literal

import msgspec
from msgspec import Struct

from . import ops
from .backend import Backend, Refused, Row, Seed, Stored, node_of
from .matching import CaseFault, mismatch

CASES = Path(__file__).parent / "cases"
CASE_KEYS = {"name", "why", "basis", "needs", "corrupts", "given", "when", "then"}
GIVEN_KEYS = {"topic", "messages", "topics", "temporary", "live"}
TOPIC_KEYS = {"id", "active", "lastActivity", "messages"}
UNKNOWN_TOPIC = "T9"
# Keys below which a text is a text, though it may look like a reference.
LITERAL = {"text", "data", "preview", "role", "status", "model", "code", "mode"}

Case = dict[str, Any]


class Outcome(Struct, frozen=True):
    """What came of one case: it passed, failed, or can't be run yet; and why."""

    area: str
    name: str
    kind: Literal["passed", "failed", "not yet"]
    why: str = ""


def load(folder: Path, areas: Iterable[str] = ()) -> list[tuple[str, Case]]:
    """Return ``(area, case)`` of every file of tree cases in a folder, by name."""
    wanted = {*areas}
    found: list[tuple[str, Case]] = []
    for path in sorted(folder.glob("*.json")):
        content = msgspec.json.decode(path.read_bytes())
        if path.name.startswith("jsonl_") or not isinstance(content, dict):
            continue
        if "cases" in content and (not wanted or content["area"] in wanted):
            found += [(content["area"], case) for case in content["cases"]]
    return found


def run(area: str, case: Case, make: Callable[[], Backend]) -> Outcome:
    """Run one case on a backend of its own."""
    name = str(case.get("name", "?"))
    try:
        _check_form(case)
        backend = make()
        try:
            if lacking := _lacking(case, backend):
                return Outcome(area, name, "not yet", lacking)
            Run(backend, case).go()
        finally:
            backend.close()
    except (Failure, CaseFault, AssertionError) as fault:
        return Outcome(area, name, "failed", str(fault))
    except Exception as fault:  # one line for each case that fails, whatever the reason
        return Outcome(area, name, "failed", f"{type(fault).__name__}: {fault}")
    return Outcome(area, name, "passed")


class Failure(Exception):
    """Something doesn't hold that must."""


def _check_form(case: Case) -> None:
    if unknown := {*case} - CASE_KEYS:
        raise CaseFault(f"the case has unknown keys {sorted(unknown)}")
    if unknown := {*case["given"]} - GIVEN_KEYS:
        raise CaseFault(f"given has unknown keys {sorted(unknown)}")
    if unknown := {*case.get("needs", ())} - ops.FEATURES:
        raise CaseFault(f"it needs the unknown {sorted(unknown)}")
    for step in case["when"]:
        if step["op"] not in ops.OPS:
            raise CaseFault(f"there is no op {step['op']}")
        if unknown := ops.strange(step):
            raise CaseFault(f"{step['op']} has unknown parameters {sorted(unknown)}")
    if unknown := {*case["then"]} - {*CHECKS}:
        raise CaseFault(f"then has unknown keys {sorted(unknown)}")
    if "error" not in case["then"]:
        raise CaseFault("then says nothing of an error")


def _lacking(case: Case, backend: Backend) -> str | None:
    for step in case["when"]:
        if lacking := ops.lacking(step):
            return lacking
        if step["op"] in backend.lacks:
            return str(step["op"])
    missing = [need for need in case.get("needs", ()) if need not in backend.features]
    return missing[0] if missing else None


class Run:
    """One case under way."""

    def __init__(self, backend: Backend, case: Case) -> None:
        self.backend = backend
        self.case = case
        self.names: dict[str, str] = {}
        self.given: dict[str, Stored] = {}
        self.result: Any = None
        self.error: Refused | None = None

    def go(self) -> None:
        """Seed, step, check; raises `Failure` at the first thing that is not as it must be."""
        self._seed()
        steps = self.case["when"]
        for place, step in enumerate(steps):
            self._step(place, step, is_last=place == len(steps) - 1)
        self.after = self.backend.stored()
        self._name_roots()
        for key, expected in self.case["then"].items():
            CHECKS[key](self, expected)
        if not self.case.get("corrupts"):
            check_standing(self.after)
            self.backend.check()

    # Given -------------------------------------------------------------------------------

    def _seed(self) -> None:
        given = self.case["given"]
        topics = [*given.get("topics", ())]
        if given["topic"] is not None:
            main = {"id": "T", **given["topic"], "messages": given.get("messages", [])}
            topics.insert(0, main)
        seeds = [self._seed_of(each, given) for each in topics]
        self.backend.seed(seeds)
        for seed in seeds:
            self._name_root(seed.id, seed.root_id)
            for message_id in seed.live:
                ops.claim(self.backend, seed.id, message_id, None)
        for chat in given.get("temporary", ()):
            self._seed_temporary(chat)
        self.given = self.backend.stored()
        self._check_seeded(seeds)

    def _seed_temporary(self, chat: dict[str, Any]) -> None:
        made = {"op": "topic.create", "topic": chat["id"], "temporary": True}
        root_id = self.backend.request(made, chat.get("lastActivity"))["rootId"]
        self.names[f"ROOT:{chat['id']}"] = root_id
        for place, row in expanded(chat["messages"]):
            step = {"op": "temporary.append", **row, "messageId": row["id"], "id": chat["id"]}
            step |= {"topic": chat["id"], "parent": "AUTO"}
            ops.append_temporary(self.backend, {**step, "at": row.get("createdAt", 100 * place)})

    def _name_root(self, topic_id: str, root_id: str) -> None:
        self.names.setdefault(f"ROOT:{topic_id}", root_id)
        if topic_id == "T":
            self.names.setdefault("ROOT", root_id)

    def _name_roots(self) -> None:
        """Let a case name the roots of topics that it has brought in."""
        for topic_id, stored in self.after.items():
            self._name_root(topic_id, stored.root_id)

    def _seed_of(self, topic: dict[str, Any], given: dict[str, Any]) -> Seed:
        if unknown := {*topic} - TOPIC_KEYS:
            raise CaseFault(f"topic {topic['id']} has unknown keys {sorted(unknown)}")
        root_id = f"root-of-{topic['id']}"
        nodes = []
        for place, row in expanded(topic["messages"]):
            parent = row["parent"]
            if parent in ("ROOT", f"ROOT:{topic['id']}"):
                parent = root_id
            nodes.append(node_of({**row, "parent": parent}, place))
        ids = {node.id for node in nodes}
        return Seed(
            id=topic["id"],
            root_id=root_id,
            active=topic.get("active"),
            activity=topic.get("lastActivity", 0),
            nodes=nodes,
            live=[message_id for message_id in given.get("live", ()) if message_id in ids],
        )

    def _check_seeded(self, seeds: list[Seed]) -> None:
        """What isn't stored as it was given would prove nothing."""
        for seed in seeds:
            stored = self.given[seed.id]
            if (stored.root_id, stored.active) != (seed.root_id, seed.active):
                raise Failure(f"topic {seed.id} was not seeded as it was given")
            if {*stored.rows} != {seed.root_id, *(node.id for node in seed.nodes)}:
                raise Failure(f"topic {seed.id} was seeded with other messages than were given")
            for node in seed.nodes:
                row = stored.rows[node.id]
                times = (node.created_at, node.updated_at, node.parent_id, node.status)
                if times != (row["createdAt"], row["updatedAt"], row["parent"], row["status"]):
                    raise Failure(f"message {node.id} was not seeded as it was given")

    # When --------------------------------------------------------------------------------

    def _step(self, place: int, step: dict[str, Any], *, is_last: bool) -> None:
        where = f"step {place + 1} ({step['op']})"
        told = {"topic": "T", **step}
        parameters = {
            key: self.resolve(value, key)
            for key, value in told.items()
            if key not in ("error", "expect", "as")
        }
        expected = self.case["then"]["error"] if is_last else step.get("error")
        before = None if expected is None else self.backend.stored()
        self.result = self.error = None
        try:
            self.result = ops.perform(self.backend, parameters)
        except Refused as refusal:
            self.error = refusal
        if self.error is not None and before is not None and not self.case.get("corrupts"):
            self._check_nothing_changed(before, where)
        if not is_last:
            self._check_error(expected, where)
        if self.error is None:
            self._bind(step.get("as"))
            if "expect" in step:
                self._match(step["expect"], self.result, f"{where}: result")

    def _check_nothing_changed(self, before: dict[str, Stored], where: str) -> None:
        if self.backend.stored() != before:
            raise Failure(f"{where} was refused ({self.error}), and changed something all the same")

    def _bind(self, name: str | None) -> None:
        if name is None:
            return
        self.names[f"${name}"] = self.result["id"]
        for place, row in enumerate(self.result.get("placeholders", ())):
            self.names[f"${name}.{place}"] = row["id"]
        stored = self.backend.stored().get(self.result["id"])
        if stored is not None:
            self.names[f"ROOT:${name}"] = stored.root_id

    def _check_error(self, expected: dict[str, Any] | None, where: str) -> None:
        if expected is None:
            if self.error is not None:
                raise Failure(f"{where} was refused: {self.error}")
            return
        codes = expected["code"]
        if self.error is None:
            raise Failure(f"{where} was not refused with {codes}")
        allowed = codes if isinstance(codes, list) else [codes]
        if "*" not in allowed and self.error.code not in allowed:
            raise Failure(f"{where} was refused with {self.error}, not {codes}")

    # Then --------------------------------------------------------------------------------

    def check_error(self, expected: dict[str, Any] | None) -> None:
        self._check_error(expected, f"the last step ({self.case['when'][-1]['op']})")

    def check_result(self, expected: Any) -> None:
        self._match(expected, self.result, "result")

    def check_messages(self, expected: list[Row]) -> None:
        for wanted in expected:
            message_id = self.resolve(wanted["id"])
            row = self._row(message_id)
            self._match(wanted, row, f"message {message_id}")

    def check_absent(self, expected: list[str]) -> None:
        for message_id in map(self.resolve, expected):
            if any(message_id in stored.rows for stored in self.after.values()):
                raise Failure(f"message {message_id} is still there")

    def check_children(self, expected: dict[str, Any]) -> None:
        for parent, children in expected.items():
            parent_id = self.resolve(parent)
            found = [
                row
                for stored in self.after.values()
                for row in stored.rows.values()
                if row["parent"] == parent_id
            ]
            found.sort(key=lambda row: (row["createdAt"], row["id"]))
            self._match(children, [row["id"] for row in found], f"the children of {parent}")

    def check_active(self, expected: str | None) -> None:
        self._match(expected, self._topic("T").active, "active", key="active")

    def check_activity(self, expected: Any) -> None:
        self._match(expected, self._topic("T").activity, "lastActivity")

    def check_count(self, expected: Any) -> None:
        self._match(expected, len(self._topic("T").rows) - self._roots("T"), "count")

    def check_topics(self, expected: dict[str, Any]) -> None:
        for name, wanted in expected.items():
            topic_id = self.resolve(name)
            if wanted is None:
                self._check_gone(topic_id)
                continue
            stored = self._topic(topic_id)
            found = {
                "active": stored.active,
                "lastActivity": stored.activity,
                "count": len(stored.rows) - self._roots(topic_id),
            }
            self._match(wanted, found, f"topic {name}")

    def _check_gone(self, topic_id: str) -> None:
        if topic_id in self.after:
            raise Failure(f"topic {topic_id} is still there")
        rows = {message_id for stored in self.after.values() for message_id in stored.rows}
        if left := rows & self._rows_before(topic_id):
            raise Failure(f"of topic {topic_id} there are still {sorted(left)}")

    def _rows_before(self, topic_id: str) -> set[str]:
        if topic_id in self.given:
            return {*self.given[topic_id].rows}
        for step in self.case["when"]:
            for old in step.get("topics", ()):  # of a migration
                if old["id"] == topic_id:
                    return {message["id"] for message in old["messages"]}
        raise CaseFault(f"topic {topic_id} was not given, and so can't be gone")

    def check_temporary(self, expected: Any) -> None:
        for name, wanted in expected.items():
            count = self.backend.temporary(self.resolve(name))
            if wanted is None and name not in {
                chat["id"] for chat in self.case["given"].get("temporary", ())
            }:
                raise CaseFault(f"chat {name} was not given, and so can't be gone")
            if wanted is None:
                if count is not None:
                    raise Failure(f"there is still a temporary chat {name}")
            elif count is None:
                raise Failure(f"there is no temporary chat {name}")
            else:
                self._match(wanted, {"count": count}, f"temporary chat {name}")

    def check_unchanged(self, expected: Any) -> None:
        if expected == "ALL":
            if {*self.after} != {*self.given}:
                raise Failure(f"the topics are {sorted(self.after)}, not {sorted(self.given)}")
            for topic_id, before in self.given.items():
                self._check_same_topic(topic_id, before, self.after[topic_id])
            return
        for message_id in map(self.resolve, expected):
            self._check_same_row(message_id, self._row(message_id))

    def _check_same_topic(self, topic_id: str, before: Stored, after: Stored) -> None:
        if (before.active, before.activity) != (after.active, after.activity):
            raise Failure(
                f"topic {topic_id} changed: active {before.active} to {after.active}, "
                f"activity {before.activity} to {after.activity}"
            )
        if {*before.rows} != {*after.rows}:
            changed = sorted({*before.rows} ^ {*after.rows})
            raise Failure(f"messages of {topic_id} came or went: {changed[:9]}")
        for message_id, row in after.rows.items():
            self._check_same_row(message_id, row)

    def _check_same_row(self, message_id: str, row: Row) -> None:
        for stored in self.given.values():
            if message_id in stored.rows:
                before = stored.rows[message_id]
                changed = [key for key in before if before[key] != row.get(key)]
                if changed:
                    raise Failure(f"message {message_id} changed: {', '.join(changed)}")
                return
        raise CaseFault(f"message {message_id} was not given, and so can't be unchanged")

    def check_checks(self, expected: list[dict[str, list[Any]]]) -> None:
        for check in expected:
            ((kind, (left, right)),) = check.items()
            one, other = self._value(left), self._value(right)
            match kind:
                case "eq":
                    holds = one == other
                case "ne":
                    holds = one != other
                case "gt":
                    holds = one > other
                case _:
                    raise CaseFault(f"there is no check {kind}")
            if not holds:
                raise Failure(f"{left} is {one!r} and {right} is {other!r}: not {kind}")

    def _value(self, value: Any) -> Any:
        """Return the value of a literal, a reference, or ``row.field``."""
        if not isinstance(value, str):
            return value
        head, _, field = value.rpartition(".")
        if head and not field.isdigit():
            return self._row(self.resolve(head))[field]
        return self.resolve(value)

    # Words -------------------------------------------------------------------------------

    def resolve(self, value: Any, key: str = "id") -> Any:
        """Put ids in the place of references, wherever a value has them."""
        if key in LITERAL:
            return value
        if isinstance(value, dict):
            return {name: self.resolve(item, name) for name, item in value.items()}
        if isinstance(value, list):
            return [self.resolve(item, key) for item in value]
        if isinstance(value, str) and (value == "ROOT" or value.startswith(("ROOT:", "$"))):
            if value not in self.names:
                raise CaseFault(f"nothing is called {value}")
            return self.names[value]
        return value

    def _match(self, expected: Any, actual: Any, where: str, key: str = "") -> None:
        if found := mismatch(self._expectation(expected, key), actual, where):
            raise Failure(found)

    def _expectation(self, value: Any, key: str = "") -> Any:
        """Resolve references, but not the keys of matchers, which look like them."""
        return self.resolve(value, key or "value")

    def _topic(self, topic_id: str) -> Stored:
        if topic_id not in self.after:
            raise Failure(f"there is no topic {topic_id}")
        return self.after[topic_id]

    def _roots(self, topic_id: str) -> int:
        return sum(row["parent"] is None for row in self._topic(topic_id).rows.values())

    def _row(self, message_id: str) -> Row:
        for stored in self.after.values():
            if message_id in stored.rows:
                return stored.rows[message_id]
        raise Failure(f"there is no message {message_id}")


CHECKS: dict[str, Callable[[Run, Any], None]] = {
    "error": Run.check_error,
    "result": Run.check_result,
    "messages": Run.check_messages,
    "absent": Run.check_absent,
    "children": Run.check_children,
    "active": Run.check_active,
    "lastActivity": Run.check_activity,
    "count": Run.check_count,
    "topics": Run.check_topics,
    "temporary": Run.check_temporary,
    "unchanged": Run.check_unchanged,
    "checks": Run.check_checks,
}


def expanded(rows: Iterable[dict[str, Any]]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the rows of a list, each with its place, and those that a generator row stands for."""
    for place, row in enumerate(rows, 1):
        if "chain" not in row:
            yield place, row
            continue
        chain = row["chain"]
        roles = ["user", "assistant"]
        first = roles.index(chain.get("firstRole", "user"))
        parent = chain["from"]
        for number in range(chain["length"]):
            message_id = f"{chain['prefix']}{number}"
            made = {
                "id": message_id,
                "parent": parent,
                "role": roles[(first + number) % 2],
                "text": message_id,
                "createdAt": chain.get("start", 1000) + number,
            }
            yield place, made
            parent = message_id


def check_standing(topics: dict[str, Stored]) -> None:
    """Demand what holds after every case; raises `Failure`."""
    for topic_id, stored in topics.items():
        rows = stored.rows
        for row in rows.values():
            if (row["role"] == "root") != (row["parent"] is None):
                raise Failure(f"{row['id']} is of role {row['role']} below {row['parent']}")
            if row["parent"] is not None and row["parent"] not in rows:
                raise Failure(f"the parent {row['parent']} of {row['id']} is not in {topic_id}")
        roots = [row for row in rows.values() if row["parent"] is None]
        if [row["id"] for row in roots] != [stored.root_id]:
            raise Failure(f"the roots of {topic_id} are {[row['id'] for row in roots]}")
        if (roots[0]["data"], roots[0]["group"]) != ({"parts": []}, 0):
            raise Failure(f"the root of {topic_id} has content or a group")
        below: dict[str, list[str]] = {}
        for row in rows.values():
            if row["parent"] is not None:
                below.setdefault(row["parent"], []).append(row["id"])
        reached, waiting = 0, [stored.root_id]
        while waiting:
            reached += 1
            waiting += below.get(waiting.pop(), ())
        if reached != len(rows):
            raise Failure(f"{len(rows) - reached} messages of {topic_id} hang off no root")
        if stored.active is not None and (
            stored.active not in rows or stored.active == stored.root_id
        ):
            raise Failure(f"the active node {stored.active} is no message of {topic_id}")


def tally(outcomes: Iterable[Outcome]) -> list[str]:
    """Tell what came of a run, in lines: failures first, then passes, then what can't be run."""
    lines = [
        f"FAILED {each.area}: {each.name}: {each.why}" for each in outcomes if each.kind == "failed"
    ]
    for kind in ("passed", "not yet"):
        counted = Counter(each.area for each in outcomes if each.kind == kind)
        for area, count in sorted(counted.items()):
            whys = sorted({each.why for each in outcomes if (each.area, each.kind) == (area, kind)})
            lines.append(f"{kind}: {area} {count}" + (f" ({', '.join(whys)})" if any(whys) else ""))
    return lines
