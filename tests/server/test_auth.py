"""Tokens and grants."""

import jwt
import pytest
from livetree.core.errors import Forbidden, Unauthenticated
from livetree_server.auth import ADMIN, LOCAL, READ, WRITE, Authenticator, issue

SECRET = "a secret of more than thirty-two bytes"


def token(**claims) -> str:
    return jwt.encode({"sub": "ann", "exp": 4_000_000_000, **claims}, SECRET, algorithm="HS256")


def test_H4_without_a_secret_everyone_is_the_local_user():
    assert Authenticator(None).grant(None) is LOCAL
    assert LOCAL.level("any") == ADMIN


def test_H3_a_token_opens_the_topics_it_names():
    grant = Authenticator(SECRET).grant(token(**{"livetree.topics": {"a-*": "read", "b": "write"}}))
    assert grant.subject == "ann"
    assert [grant.level(topic) for topic in ("a-1", "b", "bb", "c")] == [READ, WRITE, 0, 0]


def test_H3_the_highest_matching_level_counts_and_only_the_star_is_special():
    grant = Authenticator(SECRET).grant(token(**{"livetree.topics": {"*": "read", "a.b": "admin"}}))
    assert grant.level("a.b") == ADMIN
    assert grant.level("axb") == READ


def test_H3_what_a_token_does_not_allow_is_forbidden():
    grant = Authenticator(SECRET).grant(token(**{"livetree.topics": {"t": "read"}}))
    grant.require("t", READ)
    with pytest.raises(Forbidden, match="write topic t"):
        grant.require("t", WRITE)


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        (None, "needs a token"),
        ("", "needs a token"),
        ("nonsense", "not valid"),
        (token(exp=1), "expired"),
        (jwt.encode({"sub": "ann"}, SECRET, algorithm="HS256"), "exp"),
        (jwt.encode({"exp": 4_000_000_000}, SECRET, algorithm="HS256"), "sub"),
        (jwt.encode({"sub": "a", "exp": 4_000_000_000}, SECRET + "!", algorithm="HS256"), "valid"),
        (jwt.encode({"sub": "a", "exp": 4_000_000_000}, None, algorithm="none"), "valid"),
        (token(**{"livetree.topics": ["*"]}), "livetree.topics"),
        (token(**{"livetree.topics": {"*": "all"}}), "livetree.topics"),
        (token(**{"livetree.topics": {"*": ["admin"]}}), "livetree.topics"),
        (token(exp=10**400), "not valid"),
        (token(sub=5), "not valid"),
    ],
)
def test_H3_a_bad_token_is_refused_with_what_is_wrong(bad, says):
    with pytest.raises(Unauthenticated, match=says):
        Authenticator(SECRET).grant(bad)


def test_a_short_secret_is_refused():
    with pytest.raises(ValueError, match="at least 32"):
        Authenticator("short")


def test_an_issued_token_is_accepted():
    made = issue(SECRET, "bob", [("x-*", "write")], seconds=60)
    grant = Authenticator(SECRET).grant(made)
    assert grant.subject == "bob"
    assert grant.level("x-1") == WRITE
