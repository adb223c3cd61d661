"""What options and the environment tell the program: read once, checked, one struct."""

from __future__ import annotations

import ipaddress
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit, urlunsplit

from msgspec import Struct

from .auth import MIN_SECRET_BYTES

__all__ = [
    "DEFAULT_PORT",
    "Config",
    "ConfigError",
    "is_loopback",
    "key_of",
    "wants_tracebacks",
]

DEFAULT_PORT: Final = 8400
_SCHEMES: Final = {"ws": "http", "wss": "https", "http": "http", "https": "https"}
_ENDPOINT: Final = "/v1/ws"


class ConfigError(ValueError):
    """A setting can't be used; ``str(error)`` is a sentence that says what to change."""


class Config(Struct, frozen=True, kw_only=True):
    """
    Every setting of the program.

    Attributes:
        data: Where the embedded database lives.
        host, port: Where the server listens; port 0 is any that is free.
        origins: Browser origins that may connect besides the server's own.
        secret: The key that tokens are signed with; None for one local user.
        url: The server that was asked for; None if none was.
        token: What a client shows the server.

    """

    data: Path
    host: str = "127.0.0.1"
    port: int = DEFAULT_PORT
    origins: frozenset[str] = frozenset()
    secret: str | None = None
    url: str | None = None
    token: str | None = None

    @classmethod
    def read(cls, environment: Mapping[str, str] | None = None, **options: Any) -> Config:
        """
        Take the settings together; an option goes before the environment.

        Args:
            environment: The process's own, if none is given.
            options: ``data, host, port, origins, url``, each of them None if it wasn't given.

        Raises:
            ConfigError: If one can't be used.

        """
        found = os.environ if environment is None else environment
        given = {name: value for name, value in options.items() if value is not None}
        config = cls(
            data=_folder(given.get("data"), found),
            host=given.get("host", "127.0.0.1"),
            port=given.get("port", DEFAULT_PORT),
            origins=frozenset(_origin(each) for each in given.get("origins", ())),
            secret=found.get("LIVETREE_SECRET"),
            url=_url(given.get("url") or found.get("LIVETREE_URL") or None),
            token=found.get("LIVETREE_TOKEN") or None,
        )
        config._check()
        return config

    def _check(self) -> None:
        if self.secret is None:
            if not is_loopback(self.host):
                raise ConfigError(
                    f"without a secret the server listens for this machine alone, not at "
                    f"{self.host}: set LIVETREE_SECRET to at least {MIN_SECRET_BYTES} random bytes"
                )
            return
        try:
            length = len(self.secret.encode())
        except UnicodeEncodeError:
            raise ConfigError(
                "LIVETREE_SECRET is no text: write random bytes as base64 or hex"
            ) from None
        if length < MIN_SECRET_BYTES:
            raise ConfigError(
                f"LIVETREE_SECRET has {length} bytes: "
                f"give it at least {MIN_SECRET_BYTES} random ones, or unset it"
            )

    @property
    def server(self) -> str:
        """The URL of the server that commands talk to."""
        return self.url or f"http://127.0.0.1:{DEFAULT_PORT}"


def is_loopback(host: str) -> bool:
    """Tell whether an address to listen at is reached from this machine alone."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def key_of(name: str, environment: Mapping[str, str] | None = None) -> str | None:
    """Return another service's key, from the variable that the user names."""
    found = os.environ if environment is None else environment
    return found.get(name) or None


def wants_tracebacks(environment: Mapping[str, str] | None = None) -> bool:
    """Tell whether a failure shall show where in the code it arose."""
    found = os.environ if environment is None else environment
    return bool(found.get("LIVETREE_DEBUG"))


def _folder(option: Path | None, environment: Mapping[str, str]) -> Path:
    if option is not None:
        return option.expanduser().absolute()
    if named := environment.get("LIVETREE_DATA"):
        return Path(named).expanduser().absolute()
    try:
        return _platform_folder(environment) / "livetree"
    except RuntimeError:
        raise ConfigError("there is no home directory: name a data directory with --data") from None


def _platform_folder(environment: Mapping[str, str]) -> Path:
    if sys.platform == "darwin":
        return Path.home() / "Library/Application Support"
    if sys.platform == "win32":
        return Path(environment.get("LOCALAPPDATA") or Path.home() / "AppData/Local")
    # A relative path is to be ignored (XDG Base Directory Specification).
    named = environment.get("XDG_DATA_HOME", "")
    return Path(named) if named.startswith("/") else Path.home() / ".local/share"


def _origin(text: str) -> str:
    parts = urlsplit(text)
    if not parts.scheme or not parts.netloc or parts.path not in ("", "/") or parts.query:
        raise ConfigError(f"{text!r} is no origin: write it as https://chat.example.org")
    return f"{parts.scheme}://{parts.netloc}".lower()


def _url(text: str | None) -> str | None:
    """Return a server's HTTP URL without the websocket's path."""
    if text is None:
        return None
    try:
        parts = urlsplit(text)
        usable = parts.scheme in _SCHEMES and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        usable = False
    if not usable:
        raise ConfigError(f"{text!r} is no server's URL: write http://HOST:PORT or https://HOST")
    if "@" in parts.netloc or parts.query or parts.fragment:
        raise ConfigError(
            "the URL holds more than a server's place: pass a token in LIVETREE_TOKEN"
        )
    path = parts.path.removesuffix("/").removesuffix(_ENDPOINT)
    return urlunsplit((_SCHEMES[parts.scheme], parts.netloc, path, "", ""))
