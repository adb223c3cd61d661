"""Settings."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from livetree_server.config import Config, ConfigError, is_loopback, key_of

SECRET = "a secret of more than thirty-two bytes"
HOME = {"XDG_DATA_HOME": "/home/ada/data"}


def test_an_option_goes_before_the_environment():
    environment = {"LIVETREE_DATA": "/a", "LIVETREE_URL": "http://a", "LIVETREE_TOKEN": "t"}
    config = Config.read(environment, data=Path("/b"), url="http://b")
    assert (config.data, config.server, config.token) == (Path("/b"), "http://b", "t")

    config = Config.read(environment, data=None, url=None)
    assert (config.data, config.server) == (Path("/a"), "http://a")


def test_without_settings_everything_is_local(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "platform", "linux")
    config = Config.read(HOME)

    assert (config.host, config.port, config.server) == ("127.0.0.1", 8400, "http://127.0.0.1:8400")
    assert (config.url, config.token, config.secret) == (None, None, None)


@pytest.mark.parametrize(
    ("platform", "environment", "folder"),
    [
        ("linux", HOME, "/home/ada/data/livetree"),
        ("linux", {"XDG_DATA_HOME": "relative"}, "~/.local/share/livetree"),
        ("linux", {}, "~/.local/share/livetree"),
        ("darwin", HOME, "~/Library/Application Support/livetree"),
        ("linux", {"LIVETREE_DATA": "~/chats", **HOME}, "~/chats"),
    ],
)
def test_data_is_where_the_platform_keeps_it(
    monkeypatch: pytest.MonkeyPatch, platform: str, environment: dict[str, str], folder: str
):
    monkeypatch.setattr(sys, "platform", platform)

    assert Config.read(environment).data == Path(folder).expanduser()


@pytest.mark.parametrize(
    ("url", "server"),
    [
        ("http://127.0.0.1:9000", "http://127.0.0.1:9000"),
        ("ws://127.0.0.1:9000/", "http://127.0.0.1:9000"),
        ("wss://example.org/v1/ws", "https://example.org"),
        ("wss://example.org/chats/v1/ws", "https://example.org/chats"),
        ("http://[::1]:8400", "http://[::1]:8400"),
    ],
)
def test_a_server_is_named_by_any_of_its_urls(url: str, server: str):
    assert Config.read(HOME, url=url).server == server


@pytest.mark.parametrize(
    "url",
    [
        "8400",
        "localhost:8400",
        "ftp://a",
        "http://",
        "http://a:port",
        "http://a?token=b",
        "ws://b@a",
    ],
)
def test_what_is_no_server_is_refused(url: str):
    with pytest.raises(ConfigError, match="URL"):
        Config.read(HOME, url=url)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.0.2", "example.org", ""])
def test_H4_without_a_secret_only_loopback_is_served(host: str):
    assert not is_loopback(host)
    with pytest.raises(ConfigError, match="set LIVETREE_SECRET to at least 32 random bytes"):
        Config.read(HOME, host=host)
    assert Config.read({**HOME, "LIVETREE_SECRET": SECRET}, host=host).secret == SECRET


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "::1", "localhost"])
def test_H4_loopback_needs_no_secret(host: str):
    assert Config.read(HOME, host=host).host == host


@pytest.mark.parametrize(
    ("secret", "says"),
    [
        ("", "has 0 bytes"),
        ("x" * 31, "has 31 bytes"),
        ("ä" * 15, "has 30 bytes"),
        ("\udcff" * 40, "base64"),
    ],
)
def test_a_secret_that_is_none_is_refused(secret: str, says: str):
    with pytest.raises(ConfigError, match=says):
        Config.read({**HOME, "LIVETREE_SECRET": secret})


def test_origins_are_compared_as_browsers_send_them():
    config = Config.read(HOME, origins=("https://Chat.Example.org/", "http://a:3000"))
    assert config.origins == {"https://chat.example.org", "http://a:3000"}

    for text in ("example.org", "https://example.org/chat", "*"):
        with pytest.raises(ConfigError, match="no origin"):
            Config.read(HOME, origins=(text,))


def test_an_empty_variable_is_none():
    config = Config.read({**HOME, "LIVETREE_URL": "", "LIVETREE_TOKEN": "", "LIVETREE_DATA": ""})

    assert (config.url, config.token) == (None, None)
    assert config.data == Config.read(HOME).data
    assert key_of("A_KEY", {"A_KEY": ""}) is None
