import json
from pathlib import Path
from typing import Any
from zlib import crc32

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from livetree.core import protocol as p
from livetree.core.digest import Digest, active_term, node_term, state_terms
from livetree.core.tree import Tree

from tests.helpers import check_invariants

COMMITTED = Path(__file__).parents[1] / "conformance/digest.json"
VECTORS: dict[str, Any] = json.loads(COMMITTED.read_text("utf-8"))
TERMS = st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=9), max_size=9)


def named(vector: dict[str, Any]) -> str:
    return str(vector["name"])


def plain(terms: list[str]) -> str:
    """Count a digest in the simplest way."""
    lanes = (sum(crc32(term.encode()[::way]) for term in terms) % 2**32 for way in (1, -1))
    return "".join(f"{lane:08x}" for lane in lanes)


def of(terms: list[str]) -> Digest:
    digest = Digest()
    for term in terms:
        digest.add(term)
    return digest


def test_D8_the_digest_of_nothing_is_nought():
    assert str(Digest()) == "0" * 16


@given(TERMS)
def test_D8_the_digest_is_a_sum_in_two_lanes(terms: list[str]):
    assert str(of(terms)) == plain(terms)


def test_D8_lanes_do_not_run_into_each_other():
    terms = [node_term(f"m{place}", "root", "user", "success", 0, place) for place in range(1000)]

    assert str(of(terms)) == plain(terms)
    assert sum(crc32(term.encode()) for term in terms) > 2**32, "the lanes have run over"


@given(TERMS, st.randoms(use_true_random=False))
def test_D8_order_does_not_matter(terms: list[str], chance: Any):
    shuffled = [*terms]
    chance.shuffle(shuffled)

    assert str(of(shuffled)) == str(of(terms))


@given(TERMS, TERMS)
def test_D8_what_is_taken_out_leaves_no_trace(terms: list[str], others: list[str]):
    digest = of(terms)
    for term in others:
        digest.add(term)
    for term in reversed(others):
        digest.remove(term)

    assert str(digest) == plain(terms)


def test_a_copy_goes_its_own_way():
    digest = of(["a"])
    copy = digest.copy()

    copy.add("b")

    assert str(digest) == plain(["a"])
    assert str(copy) == plain(["a", "b"])


def test_D8_the_terms():
    assert node_term("m", "r", "tool", "paused", 3, 9) == "m\nr\ntool\npaused\n3\n9"
    assert active_term(None) == "active\n"
    assert active_term("m") == "active\nm"
    assert state_terms("name", "a\nb") == ['set\nname\n"a\\nb"']
    assert state_terms("live", {"b": 0, "a": 3}) == ['set\nlive\n{"a":3,"b":0}']
    assert state_terms("lastActivityAt", 5) == ["set\nlastActivityAt\n5"]


def test_D8_metadata_has_a_term_for_each_of_its_keys():
    assert state_terms("metadata", {}) == []
    assert state_terms("metadata", {"b": {"d": 1, "c": 2.0}, "": None}) == [
        'set\nmetadata.b\n{"c":2,"d":1}',
        "set\nmetadata.\nnull",
    ]


@pytest.mark.parametrize(
    "change",
    [
        {"message_id": "n"},
        {"parent_id": "q"},
        {"role": "assistant"},
        {"status": "error"},
        {"group": 1},
        {"version": 2},
    ],
    ids=str,
)
def test_D8_every_field_of_a_message_counts(change: dict[str, Any]):
    fields: dict[str, Any] = {
        "message_id": "m",
        "parent_id": "p",
        "role": "user",
        "status": "success",
        "group": 0,
        "version": 1,
    }

    assert node_term(**fields | change) != node_term(**fields)


# The vectors, for every language ----------------------------------------------------------


@pytest.mark.parametrize("vector", VECTORS["topics"], ids=named)
def test_D8_a_topic_of_the_vectors(vector: dict[str, Any]):
    nodes = [{**node, "createdAt": 1, "updatedAt": 1} for node in vector["nodes"]]

    tree = Tree.load(
        topic_id="topic",
        root_id="root",
        seq=1,
        commit="commit",
        active_node_id=vector["activeNodeId"],
        state=vector["state"],
        nodes=msgspec.convert(nodes, list[p.Node]),
    )

    assert tree.digest == vector["digest"]
    if vector["terms"] is not None:
        assert plain(vector["terms"]) == vector["digest"]


@pytest.mark.parametrize("vector", VECTORS["histories"], ids=named)
def test_D6_a_history_of_the_vectors(vector: dict[str, Any]):
    tree = Tree("topic", "root")
    assert tree.digest == vector["start"]

    for told in vector["deltas"]:
        before = tree.digest
        delta = p.decode_frame(json.dumps(told).encode())
        assert isinstance(delta, p.Delta)
        assert tree.apply(delta)
        assert tree.digest == told["digest"]
        assert tree.digest != before, "every commit changes something"
        check_invariants(tree)


def test_the_histories_tell_everything_that_a_delta_can_have():
    told = [delta for vector in VECTORS["histories"] for delta in vector["deltas"]]
    puts = [put for delta in told for put in delta.get("put", [])]

    keys = {"type", *p.Delta.__struct_encode_fields__} - {"large"}
    assert {key for delta in told for key in delta} == keys
    assert {key for put in puts for key in put} >= {"parentId", "context", "stats", "modelId"}
