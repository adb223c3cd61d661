from pathlib import Path

import pytest

from tests.house.fence import complaints

ROOT = Path(__file__).parents[2]
SOURCES = [
    (".".join(path.relative_to(root).with_suffix("").parts), path)
    for root in (ROOT / "client_sdk/python", ROOT / "server")
    for package in ("livetree", "livetree_server")
    for path in sorted((root / package).rglob("*.py"))
]


@pytest.mark.parametrize(("module", "path"), SOURCES, ids=[module for module, _ in SOURCES])
def test_imports_go_one_way(module: str, path: Path):
    assert complaints(module, path.read_text("utf-8")) == []


@pytest.mark.parametrize(
    ("module", "source"),
    [
        # The core computes.
        ("livetree.core.tree", "import asyncio"),
        ("livetree.core.tree", "import time"),
        ("livetree.core.tree", "import random"),
        ("livetree.core.tree", "import logging"),
        ("livetree.core.tree", "import secrets"),
        ("livetree.core.tree", "import os.path"),
        ("livetree.core.tree", "import socket"),
        ("livetree.core.tree", "import threading"),
        ("livetree.core.tree", "from pathlib import Path"),
        ("livetree.core.tree", "from urllib.request import urlopen"),
        ("livetree.core.tree", "from importlib import import_module"),
        ("livetree.core.tree", "import anyio"),
        ("livetree.core.tree", "def plan():\n    import time"),
        ("livetree.core.tree", "from uuid import uuid4"),
        ("livetree.core.tree", "import uuid\nuuid.uuid4()"),
        ("livetree.core.tree", "import uuid\nmake_id = uuid.uuid1"),
        ("livetree.core.tree", "from datetime import datetime\ndatetime.now()"),
        ("livetree.core.tree", "import datetime\nclock = datetime.datetime.utcnow"),
        ("livetree.core.tree", "from datetime import date\ndate.today()"),
        ("livetree.core.tree", "open('file')"),
        ("livetree.core.tree", "import io\nio.open('file')"),
        ("livetree.core.tree", "print('here')"),
        ("livetree.core.tree", "async def plan(): pass"),
        ("livetree.core.tree", "async def plan():\n    await other()"),
        ("livetree.core.tree", "async def plan():\n    return [x async for x in y]"),
        ("livetree.core.tree", "from livetree.client import connect"),
        ("livetree.core.tree", "from livetree.formats import markdown"),
        ("livetree.core.tree", "from livetree import connect"),
        ("livetree.core.tree", "from ..client import connect"),
        ("livetree.core.__init__", "from ..client import connect"),
        ("livetree.core.deep.__init__", "from ...client import connect"),
        ("livetree.core.tree", "import livetree_server.config"),
        # So do the formats.
        ("livetree.formats.markdown", "import os"),
        ("livetree.formats.markdown", "import sqlite3"),
        ("livetree.formats.markdown", "async def read(): pass"),
        ("livetree.formats.markdown", "from livetree.client import connect"),
        ("livetree.formats.markdown", "from .. import testing"),
        # Client, mirror and bots take the core.
        ("livetree.client", "from livetree.formats import markdown"),
        ("livetree.mirror", "from .formats import markdown"),
        ("livetree.bots", "from livetree.testing import Clock"),
        ("livetree.bots", "import livetree"),
        # The SDK knows no server.
        ("livetree.__init__", "import livetree_server"),
        ("livetree.client", "from livetree_server import config"),
        ("livetree.testing", "from livetree_server.topics import room"),
        # Topics know core and nothing of what serves them.
        ("livetree_server.topics.room", "from livetree_server.storage import Store"),
        ("livetree_server.topics.room", "from livetree_server import bus"),
        ("livetree_server.topics.room", "from ..hub import Hub"),
        ("livetree_server.topics.__init__", "from ..hub import Hub"),
        ("livetree_server.topics.room", "import livetree_server.gateway.session"),
        ("livetree_server.topics.room", "import livetree_server.http"),
        ("livetree_server.topics.room", "from livetree.formats import markdown"),
        ("livetree_server.topics.room", "if TYPE_CHECKING:\n    from ..storage import Store"),
        # The hub sees bytes.
        ("livetree_server.hub.fanout", "from livetree_server.topics.ports import Fanout"),
        ("livetree_server.hub.fanout", "from livetree.core.tree import Tree"),
        ("livetree_server.hub.fanout", "from livetree.core import tree"),
        ("livetree_server.hub.fanout", "from livetree_server.storage import Store"),
        # Storage and bus know only the ports.
        ("livetree_server.storage.sql", "from livetree_server.topics import room"),
        ("livetree_server.storage.sql", "from ..hub import Hub"),
        ("livetree_server.storage.sql", "from livetree.formats import markdown"),
        ("livetree_server.bus.redis", "from livetree_server.topics.runner import Runner"),
        ("livetree_server.bus.redis", "from livetree_server.storage import Store"),
        # Gateway and http know topics and hub, not each other and not what is below.
        ("livetree_server.gateway.endpoint", "from livetree_server.storage import Store"),
        ("livetree_server.gateway.endpoint", "from livetree_server.bus import Bus"),
        ("livetree_server.gateway.endpoint", "from livetree_server.http import pages"),
        ("livetree_server.gateway.endpoint", "from livetree.formats import markdown"),
        ("livetree_server.http.pages", "from livetree_server.gateway import session"),
        ("livetree_server.http.pages", "from livetree_server.storage import Store"),
        ("livetree_server.http.pages", "from livetree.mirror import Mirror"),
        # Only the cli knows app, client and bots.
        ("livetree_server.http.pages", "from livetree_server.app import App"),
        ("livetree_server.auth", "from livetree_server import app"),
        ("livetree_server.__init__", "from .app import App"),
        ("livetree_server.app", "from livetree.client import connect"),
        ("livetree_server.gateway.session", "from livetree import bots"),
        ("livetree_server.auth", "import livetree"),
        ("livetree_server.cli", "from livetree.testing import Clock"),
        # Config and metrics are what the rooms stand on.
        ("livetree_server.config", "from livetree_server.topics import ports"),
        ("livetree_server.metrics", "from livetree_server.hub import Hub"),
        # Only the app joins them.
        ("livetree_server.cli", "from .storage import Store\nfrom .bus import Bus"),
        ("livetree_server.auth", "from .hub import Hub\nfrom .http import pages"),
    ],
)
def test_a_breach_is_seen(module: str, source: str):
    assert complaints(module, source)


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("livetree.core.tree", "import msgspec\nfrom . import errors\nfrom .live import Live"),
        ("livetree.core.__init__", "from .tree import Tree"),
        ("livetree.core.plan", "draft = Draft(context.now, offers.open(input))"),
        ("livetree.core.ids", "from uuid import UUID\nfrom urllib.parse import quote"),
        ("livetree.core.ids", "from datetime import datetime\ndatetime.fromisoformat(text)"),
        ("livetree.formats.markdown", "import io, csv\nfrom livetree.core import tree"),
        ("livetree.client", "import asyncio, time\nimport anyio\nfrom .core.tree import Tree"),
        ("livetree.bots", "from .client import connect"),
        ("livetree.__init__", "from .client import connect\nfrom .formats import markdown"),
        ("livetree_server.topics.room", "import asyncio\nfrom livetree.core.tree import Tree"),
        ("livetree_server.topics.runner", "from .ports import Store\nfrom .. import metrics"),
        ("livetree_server.hub.fanout", "from livetree.core.protocol import Delta"),
        ("livetree_server.storage.sql", "import sqlalchemy\nfrom ..topics.ports import Store"),
        ("livetree_server.bus.redis", "from livetree_server.topics import ports"),
        ("livetree_server.gateway.endpoint", "from ..topics import room\nfrom ..hub import Hub"),
        ("livetree_server.http.pages", "from livetree.formats import markdown"),
        ("livetree_server.app", "from . import auth, bus, gateway, hub, http, storage, topics"),
        ("livetree_server.cli", "from .app import App\nfrom livetree import bots, client"),
        ("livetree_server.cli", "from .storage import check"),
        ("livetree_server.config", "import os"),
    ],
)
def test_what_is_allowed_passes(module: str, source: str):
    assert complaints(module, source) == []
