"""What commits delete, and what comes back of it."""

import pytest
from livetree.core import protocol as p
from livetree.core.content import data_of_text
from livetree.core.errors import Internal, TooLarge, Validation
from livetree.core.trash import Moved, Revival, TrashEntry, Wanted
from livetree.core.view import Place
from livetree_server.topics.ports import SeqTaken, Store
from msgspec import UNSET, Raw
from msgspec.structs import replace

from tests.contracts.building import (
    START,
    Room,
    ask,
    chain,
    check_stored,
    create,
    data_of,
    say,
    tree_in,
)
from tests.contracts.test_store_list import encoded


def places(entry: TrashEntry | None) -> dict[str, Place]:
    """Return where the rows of an entry hung."""
    assert entry is not None
    return {node.id: Place(node.parent_id, node.siblings_group_id) for node in entry.nodes}


async def trashed(store: Store, limit: int, topic_id: str = "topic") -> list[tuple[int, str]]:
    """Read all pages of the trash; returns entries and ids."""
    found: list[tuple[int, str]] = []
    cursor = None
    while True:
        rows, cursor = await store.trash_page(topic_id, cursor=cursor, limit=limit)
        assert len(rows) == limit or cursor is None
        assert all(row.node.data is UNSET for row in rows)
        found += [(row.seq, row.node.id) for row in rows]
        if cursor is None:
            return found


async def test_a_deleted_message_is_in_the_trash_as_it_was_stored(store: Store):
    room = Room()
    spaced = Raw(b' {"parts" : [ {"type":"text", "text":"\\u0000\\ud83d\\ude00 x"} ], "n":1.50} ')
    await room.do(store, create(), say("a"), say("b", parent="a"))
    fields = {"model": "m\0odel", "stats": Raw(b'{"n": 1}'), "role": "assistant"}
    await room.do(store, say("c", data=spaced, **fields), subject="s\0ubject")
    await room.do(store, p.MessageUpdate(message_id="c", context=Raw(b'{"c": 2}'), group=3))
    before = (await tree_in(store, "topic")).node("c")
    room.tree.release("c")
    room.now += 5

    await room.do(store, p.MessageDelete(message_id="c"), subject="bea")

    entry = await store.trash("topic", Wanted(seq=6))
    assert entry is not None
    (node,) = entry.nodes
    assert bytes(data_of(node)) == bytes(spaced)
    assert node == before
    assert (entry.seq, entry.active_before, entry.active_after) == (6, "c", "b")
    assert (entry.last_created_at, entry.moved) == (before.created_at, {})
    ((row,), cursor) = await store.trash_page("topic", cursor=None, limit=10)
    assert cursor is None
    assert (row.seq, row.op, row.by, row.at) == (6, "message.delete", "bea", START + 5)
    assert row.node == replace(before, data=UNSET)
    await check_stored(store, room)


async def test_an_entry_has_the_children_that_were_handed_over(store: Store):
    room = Room()
    await room.do(store, create(), say("a"), say("b"), say("c"), say("d", parent="b"))
    await room.do(store, p.MessageUpdate(message_id="c", group=2))

    await room.do(store, p.MessageDelete(message_id="b"))

    entry = await store.trash("topic", Wanted(seq=room.tree.seq))
    assert entry is not None
    assert entry.moved == {"c": Moved("b", 2, "a", 1), "d": Moved("b", 0, "a", 0)}
    assert places(entry) == {"b": Place("a", 0)}
    await room.do(store, p.TopicUndo())
    await check_stored(store, room)
    assert (await tree_in(store, "topic")).node("c").parent_id == "b"


async def test_rows_have_the_place_that_all_knew_though_the_batch_moved_them(store: Store):
    room = Room()
    await room.do(store, create(), say("a"), say("b"), say("c", parent="ROOT"))

    await room.do(
        store,
        p.Batch(
            commands=[
                p.MessageUpdate(message_id="b", parent="c", text="never stored"),
                p.MessageDelete(message_id="c", cascade=True),
            ]
        ),
    )

    entry = await store.trash("topic", Wanted(seq=5))
    assert places(entry) == {"b": Place("a", 0), "c": Place("topic-root", 0)}
    assert entry is not None
    assert {bytes(data_of(node)) for node in entry.nodes} == {data_of_text(each) for each in "bc"}
    await check_stored(store, room)


async def test_a_row_changed_and_removed_within_a_run_is_kept_as_it_was_last(store: Store):
    room = Room()
    await room.do(store, create(), say("a"), say("b"))

    await room.do(
        store,
        p.MessageUpdate(message_id="b", parent="ROOT", text="changed"),
        say("c", parent="b"),
        p.MessageDelete(message_id="b", cascade=True),
        p.MessageDelete(message_id="a"),
    )

    entry = await store.trash("topic", Wanted(message_id="b"))
    assert places(entry) == {"b": Place("topic-root", 0)}
    assert entry is not None
    assert data_of(entry.nodes[0]) == Raw(data_of_text("changed"))
    assert await trashed(store, 10) == [(7, "a"), (6, "b"), (6, "c")]
    await check_stored(store, room)


async def test_what_comes_back_is_byte_for_byte_what_went(store: Store):
    room = Room()
    spaced = Raw(b' {"parts" : [ ] , "n":1.50} ')
    await room.do(store, create(), say("a"), say("b", data=spaced), say("c"), say("d"))
    whole = await store.contents("topic", list("abcd"))

    await room.do(store, p.MessageDelete(message_id="b", cascade=True))
    await check_stored(store, room)
    await room.do(store, p.TopicUndo())

    await check_stored(store, room)
    back = await store.contents("topic", list("abcd"))
    assert {each: data for each, (_, data) in back.items()} == {
        each: data for each, (_, data) in whole.items()
    }
    assert await store.trash("topic", Wanted(seq=6)) is None
    assert await trashed(store, 10) == []


async def test_an_entry_goes_with_its_last_row(store: Store):
    room = Room()
    await room.do(store, create(), say("a"), say("b"), say("c"))
    await room.do(store, p.MessageDelete(message_id="a", cascade=True))

    await room.do(store, p.MessageRestore(message_id="b"))
    assert places(await store.trash("topic", Wanted(seq=5))).keys() == {"a", "c"}
    await check_stored(store, room)

    await room.do(store, p.MessageRestore(message_id="a", cascade=True))
    assert places(await store.trash("topic", Wanted(by="ann"))).keys() == {"c"}
    await room.do(store, p.MessageRestore(message_id="c"))

    assert await store.trash("topic", Wanted(seq=5)) is None
    assert await store.trash("topic", Wanted(by="ann")) is None
    assert await store.trash("topic", Wanted(message_id="a")) is None
    await check_stored(store, room)


async def test_a_batch_with_several_deletions_makes_one_entry(store: Store):
    room = Room()
    await room.do(store, create(), say("a"), say("b"), say("c"), say("x", parent="ROOT"))
    gone = [p.MessageDelete(message_id=each) for each in ("b", "x", "a")]

    await room.do(store, p.Batch(commands=gone))

    entry = await store.trash("topic", Wanted(by="ann"))
    assert places(entry) == {
        "a": Place("topic-root", 0),
        "b": Place("a", 0),
        "x": ("topic-root", 0),
    }
    assert entry is not None
    assert entry.moved == {"c": Moved("b", 0, "topic-root", 0)}
    await check_stored(store, room)
    await room.do(store, p.TopicUndo())
    await check_stored(store, room)
    assert (await tree_in(store, "topic")).node("c").parent_id == "b"


async def test_what_a_batch_brings_back_and_deletes_again_is_not_lost(store: Store):
    room = Room()
    await room.do(store, create(), say("a"), say("b"), p.MessageDelete(message_id="b"))

    await room.do(
        store,
        p.Batch(
            commands=[
                p.MessageRestore(message_id="b"),
                p.MessageDelete(message_id="b"),
                p.TopicUpdate(name="new"),
            ]
        ),
    )

    assert places(await store.trash("topic", Wanted(message_id="b"))) == {"b": Place("a", 0)}
    await check_stored(store, room)


async def test_a_row_may_come_back_and_go_and_come_back_within_one_run(store: Store):
    room = Room()
    await room.do(store, create(), say("a"), say("b"), p.MessageDelete(message_id="b"))
    gone = p.MessageDelete(message_id="b")

    await room.do(store, p.MessageRestore(message_id="b"), gone)

    assert await trashed(store, 10) == [(6, "b")]
    await check_stored(store, room)
    entry = await store.trash("topic", Wanted(seq=6))
    # As no room decides: what the run itself deletes, it doesn't know of.
    room.trash = {Wanted(message_id="b"): entry}
    again = room.plan(p.MessageRestore(message_id="b"), gone, p.MessageRestore(message_id="b"))
    *others, last = again.entries
    last = replace(last, revivals=[Revival(8, ["b"])])
    again = replace(again, entries=[*others, last])

    await store.commit(again)

    room.keep(again)
    assert await trashed(store, 10) == []
    await check_stored(store, room)
    assert await store.contents("topic", ["b"]) == {"b": (9, data_of_text("b"))}


async def test_a_row_that_has_left_the_trash_since_it_was_read_comes_back_all_the_same(
    store: Store,
):
    room = Room()
    await room.do(store, create(), say("a"), p.MessageDelete(message_id="a"))
    entry = await store.trash("topic", Wanted(by="ann"))
    while await store.prune(START * 10**4):
        pass
    assert await store.trash("topic", Wanted(by="ann")) is None

    room.trash = {Wanted(by="ann"): entry}
    await store.commit(run := room.plan(p.TopicUndo()))

    room.keep(run)
    await check_stored(store, room)


async def test_rows_that_would_not_go_into_the_trash_don_t_go(store: Store):
    room = Room()
    await room.do(store, create(), say("a"), say("b"))
    run = room.plan(p.MessageDelete(message_id="a", cascade=True))
    (entry,) = run.entries

    with pytest.raises(Internal):
        await store.commit(replace(run, entries=[replace(entry, burial=None)]))

    await check_stored(store, room)
    assert await trashed(store, 10) == []


async def test_so_much_content_is_brought_back_in_parts(
    store: Store, monkeypatch: pytest.MonkeyPatch
):
    room = Room()
    await room.do(store, create(), say("a"), say("b", parent="a"), say("c", parent="b"))
    await room.do(store, say("d", parent="a"), p.MessageDelete(message_id="a", cascade=True))
    size = sum([len(data_of_text(each)) for each in "bc"])
    monkeypatch.setattr("livetree_server.storage.trash.TRASH_BYTES", size)

    for wanted in (Wanted(by="ann"), Wanted(seq=room.tree.seq), whole_of("a")):
        with pytest.raises(TooLarge, match="in parts"):
            await store.trash("topic", wanted)

    below_b = await store.trash("topic", whole_of("b"))
    assert below_b is not None
    assert {node.id for node in below_b.nodes} == {"b", "c"}
    alone = await store.trash("topic", Wanted(message_id="a"))
    assert alone is not None
    assert [node.id for node in alone.nodes] == ["a"]


def whole_of(message_id: str) -> Wanted:
    return Wanted(message_id=message_id, whole=True)


async def test_a_refused_run_moves_nothing_into_the_trash_or_out_of_it(store: Store):
    room = Room()
    await room.do(store, create(), say("a"), say("b"), p.MessageDelete(message_id="b"))
    room.trash[Wanted(by="ann")] = await store.trash("topic", Wanted(by="ann"))
    stale = room.plan(p.TopicUndo(), p.MessageDelete(message_id="a", cascade=True))
    await room.do(store, p.TopicUpdate(name="new"))

    with pytest.raises(SeqTaken):
        await store.commit(stale)

    await check_stored(store, room)
    assert await trashed(store, 10) == [(4, "b")]


async def test_one_row_or_what_hung_below_it_or_the_whole_entry_is_read(store: Store):
    room = Room()
    await room.do(store, create(), *(say(each) for each in "abcd"))
    await room.do(store, p.MessageDelete(message_id="b", cascade=True), subject="bea")
    await room.do(store, p.MessageDelete(message_id="a"))

    async def ids(**wanted: object) -> set[str]:
        return set(places(await store.trash("topic", Wanted(**wanted))))

    assert await ids(message_id="c") == {"c"}
    assert await ids(message_id="c", whole=True) == {"c", "d"}
    assert await ids(message_id="b", whole=True) == {"b", "c", "d"}
    assert await ids(seq=6) == {"b", "c", "d"}
    assert await ids(by="bea") == {"b", "c", "d"}
    assert await ids(by="ann") == {"a"}
    for wanted in (Wanted(seq=5), Wanted(by="carl"), Wanted(by=""), Wanted(message_id="x")):
        assert await store.trash("topic", wanted) is None
    assert await store.trash("nowhere", Wanted(seq=6)) is None


async def test_the_last_entry_of_a_subject_is_the_one_with_the_highest_seq(store: Store):
    room = Room()
    await room.do(store, create(), *(say(f"m{place}", parent="ROOT") for place in range(12)))
    for place in range(12):
        subject = "ann" if place % 3 else "bea"
        await room.do(store, p.MessageDelete(message_id=f"m{place}"), subject=subject)

    assert places(await store.trash("topic", Wanted(by="ann"))).keys() == {"m11"}
    assert places(await store.trash("topic", Wanted(by="bea"))).keys() == {"m9"}
    await room.do(store, p.TopicUndo())
    assert places(await store.trash("topic", Wanted(by="ann"))).keys() == {"m10"}


@pytest.mark.parametrize("limit", [1, 2, 3, 7, 10, 11, 100])
async def test_pages_show_the_latest_deletion_first_and_its_rows_in_order(store: Store, limit: int):
    room = Room()
    await room.do(store, create(), *(say(each) for each in ("c", "b", "a", "d")))
    await room.do(store, *(say(f"x{place}", parent="ROOT") for place in range(6)))
    await room.do(store, p.MessageDelete(message_id="x2"))
    await room.do(store, p.MessageDelete(message_id="b", cascade=True))
    await room.do(store, p.TopicClear())

    found = await trashed(store, limit)

    clear = [(14, each) for each in ("c", "x0", "x1", "x3", "x4", "x5")]
    assert found == [*clear, (13, "b"), (13, "a"), (13, "d"), (12, "x2")]
    assert await trashed(store, limit, "nowhere") == []


async def test_a_page_of_the_trash_is_not_disturbed_by_what_comes_and_goes(store: Store):
    room = Room()
    await room.do(store, create(), *(say(f"m{place}", parent="ROOT") for place in range(6)))
    for place in range(5):
        await room.do(store, p.MessageDelete(message_id=f"m{place}"))
    first, cursor = await store.trash_page("topic", cursor=None, limit=2)
    await room.do(store, p.MessageRestore(message_id="m3"), p.MessageRestore(message_id="m2"))
    await room.do(store, p.MessageDelete(message_id="m5"))

    second, cursor = await store.trash_page("topic", cursor=cursor, limit=10)

    assert [row.node.id for row in first + second] == ["m4", "m3", "m1", "m0"]
    assert cursor is None


@pytest.mark.parametrize(
    "cursor",
    [
        "",
        "x",
        "é",
        "!!!!",
        *map(encoded, ("[]", "{}", "null", "[1,2]", '[1,2,"a",3]', "[1,2,3]", '["1",2,"a"]')),
        *map(encoded, ('[1, 2,"a"]', f'[{2**63},1,"a"]', '[-1,2,"a"]', '[1.5,2,"a"]')),
        encoded('[1,2,"aa"]').rstrip("="),
        encoded('[1,2,"aa"]') + "\n",
        encoded('[1,2,"aa"]') * 1000,
    ],
)
async def test_a_cursor_that_the_trash_did_not_give_is_refused(store: Store, cursor: str):
    room = Room()
    await room.do(store, create(), say("a"), p.MessageDelete(message_id="a"))

    with pytest.raises(Validation):
        await store.trash_page("topic", cursor=cursor, limit=1)


async def test_the_trash_of_a_deleted_topic_is_absent_until_it_is_restored(store: Store):
    room = Room()
    await room.do(store, create(), say("a"), p.MessageDelete(message_id="a"), p.TopicDelete())

    assert await store.trash("topic", Wanted(seq=3)) is None
    assert await store.trash_page("topic", cursor=None, limit=10) == ([], None)
    loaded = await store.load("topic", deleted=True)
    assert loaded is not None
    assert loaded.graves == {"a": Place("topic-root", 0)}

    await room.do(store, p.TopicRestore())
    assert await trashed(store, 10) == [(3, "a")]
    await check_stored(store, room)


async def test_the_trash_of_one_topic_is_not_that_of_another(store: Store):
    room, other = Room(), Room("other")
    for each in (room, other):
        await each.do(store, create(), say("a"), say("b"))
    await room.do(store, p.MessageDelete(message_id="a", cascade=True))
    await other.do(store, p.MessageDelete(message_id="b"))

    await room.do(store, p.TopicUndo())

    assert await trashed(store, 10, "other") == [(4, "b")]
    await check_stored(store, room, other)


async def test_a_reply_that_is_deleted_while_pending_is_kept_as_pending(store: Store):
    room = Room()
    await room.do(store, create(), ask("u", "a"), say("lost", role="assistant", status="pending"))

    await room.do(store, p.MessageDelete(message_id="lost"))

    entry = await store.trash("topic", Wanted(message_id="lost"))
    assert entry is not None
    assert entry.nodes[0].status == "pending"
    assert len(await store.due(lease_before=0, offered_before=START * 2)) == 1
    await room.do(store, p.TopicUndo())
    await check_stored(store, room)
    assert room.tree.node("lost").status == "error"


@pytest.mark.parametrize("depth", [5_000, 20_000])
async def test_a_chain_of_any_depth_goes_and_comes_back(store: Store, depth: int):
    room = Room()
    await room.do(store, chain("topic-root", depth))
    await room.do(store, p.MessageDelete(message_id="m10", cascade=True))

    rows, cursor = await store.trash_page("topic", cursor=None, limit=3)
    assert [row.node.id for row in rows] == ["m10", "m11", "m12"]
    rows, _ = await store.trash_page("topic", cursor=cursor, limit=2)
    assert [row.node.id for row in rows] == ["m13", "m14"]

    await room.do(store, p.TopicUndo())

    await check_stored(store, room)
    assert await trashed(store, 10) == []
