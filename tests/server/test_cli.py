"""The program, as its users start it."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import sqlite3
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import livetree
import pytest

from tests.sdk.formats.exports import export
from tests.server.chat_endpoint import chat_endpoint
from tests.server.program import COMMAND, Program, Running, sentence

SECRET = "a secret of more than thirty-two bytes"
NOBODY = "http://127.0.0.1:9"  # the port of `discard`, which nobody serves

TRIP = export("a: user Where to?\n b < a: assistant Home", id="trip", title="Trip plan")
TALK = export("a: user Hi\n b < a: assistant Hello\n c < a: assistant Hey", id="talk", title="Talk")
BROKEN = {"id": "broken", "title": "Broken"}


@pytest.fixture
def program(tmp_path: Path) -> Program:
    return Program(tmp_path)


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Program, Running]]:
    """A server with the demo, whose topic is there."""
    program = Program(tmp_path_factory.mktemp("demo"))
    with program.serving("--demo") as server:
        wait_for_demo(program, server)
        yield program, server


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Program, Running]]:
    """A server with a secret."""
    program = Program(tmp_path_factory.mktemp("guarded"))
    with program.serving(LIVETREE_SECRET=SECRET) as server:
        yield program, server


def wait_for_demo(program: Program, server: Running) -> None:
    """Wait until the demo's bot answers."""
    done = program.run(
        "say", "--new-topic", "Ready?", "Ready", "--model", "echo", "--url", server.url
    )
    assert done.returncode == 0, done.stderr


def file_of(folder: Path, *conversations: object, name: str = "conversations.json") -> Path:
    path = folder / name
    path.write_text(json.dumps(conversations), "utf-8")
    return path


def get(url: str) -> dict[str, object]:
    with urllib.request.urlopen(url, timeout=30) as answer:
        found: dict[str, object] = json.load(answer)
        return found


# The program ------------------------------------------------------------------------------


def test_it_tells_its_version(program: Program):
    assert re.fullmatch(r"livetree \d+\.\d+\.\d+\n", program.run("--version").stdout)


def test_help_lists_every_command(program: Program):
    text = program.run("--help").stdout

    for command in ("serve", "token", "topics", "say", "tail", "import", "bot"):
        assert re.search(rf"^  {command}  ", text, re.MULTILINE), command


@pytest.mark.parametrize(
    "arguments",
    [
        ("fly",),
        ("serve", "--port", "many"),
        ("say", "topic", "text"),
        ("say", "topic", "--model", "echo"),
        ("say", "a", "b", "--new-topic", "c", "--model", "echo"),
        ("import",),
        ("token", "ada", "--topics", "*=all"),
        ("bot", "openai", "--model", "a", "--base-url", "example.org"),
    ],
    ids=" ".join,
)
def test_a_wrong_call_is_told_in_a_sentence(program: Program, arguments: tuple[str, ...]):
    assert "--help" in sentence(program.run(*arguments), status=2)


@pytest.mark.parametrize(
    ("variable", "value", "says"),
    [
        ("LIVETREE_URL", "8400", "is no server's URL"),
        ("LIVETREE_URL", "http://ada:secret@example.org", "pass a token in LIVETREE_TOKEN"),
        ("LIVETREE_SECRET", "short", "at least 32"),
    ],
)
def test_a_wrong_setting_is_told_in_a_sentence(
    program: Program, variable: str, value: str, says: str
):
    assert says in sentence(program.run("topics", **{variable: value}))


@pytest.mark.parametrize(
    "arguments",
    [
        ("topics",),
        ("tail", "any"),
        ("say", "any", "text", "--model", "echo"),
        ("bot", "echo"),
        ("bot", "openai", "--base-url", NOBODY, "--model", "any"),
    ],
    ids=" ".join,
)
def test_without_a_server_each_command_says_so(program: Program, arguments: tuple[str, ...]):
    said = sentence(program.run(*arguments, "--url", NOBODY.replace("http", "ws")))

    assert said.startswith(f"no server answers at {NOBODY}: start one with livetree serve")


def test_a_reader_that_goes_is_no_failure_to_tell(demo: tuple[Program, Running]):
    program, server = demo
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [*COMMAND, "topics", "--url", server.url],
        env=program.environment({}),
        stdout=write,
        stderr=subprocess.PIPE,
        timeout=60,
    )
    os.close(write)

    assert (done.returncode, done.stderr) == (1, b"")


# Serving ----------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda each: each.name)
def test_a_server_serves_until_it_is_told_to_stop(program: Program, number: signal.Signals):
    with program.serving() as server:
        assert get(f"{server.url}/healthz")["status"] == "ok"
        assert get(f"{server.url}/readyz")["status"] == "ready"
        assert (program.data / "server.url").read_text() == f"{server.url}\n"

        assert server.end(number) == 0
        assert (server.line(), server.complaints()) == ("", "")
    assert not (program.data / "server.url").exists()


def test_the_data_directory_is_for_its_user_alone(program: Program):
    with program.serving():
        assert program.data.stat().st_mode & 0o777 == 0o700


def test_a_server_that_was_killed_starts_again(program: Program):
    with program.serving() as server:
        made = program.run("import", file_of(program.home, TRIP), "--url", server.url)
        assert made.returncode == 0
        server.process.kill()
        server.process.wait()
    with program.serving() as server:
        assert "Trip plan" in program.run("topics", "--url", server.url).stdout


def test_a_port_in_use_is_told(demo: tuple[Program, Running]):
    program, server = demo
    port = server.url.rpartition(":")[2]
    said = sentence(program.run("serve", "--port", port, "--data", program.home / "other"))

    assert said.startswith(f"port {port} of 127.0.0.1 is in use")
    assert not (program.home / "other").exists()


def test_a_directory_that_cannot_be_is_told(program: Program):
    (program.home / "file").write_text("")
    for path in ("file", "file/below"):
        said = sentence(program.run("serve", "--port", "0", "--data", program.home / path))
        assert re.search(rf"{path} can't be used \(.+\): name another with --data$", said)


def test_a_directory_that_is_read_only_is_told(program: Program):
    program.data.mkdir(mode=0o500)
    # Root may write everywhere, but not into the kernel's own tree.
    folder = Path("/proc/livetree") if os.geteuid() == 0 else program.data

    said = sentence(program.run("serve", "--port", "0", "--data", folder))
    assert "can't be used" in said


def test_H4_another_address_needs_a_secret(program: Program):
    said = sentence(program.run("serve", "--host", "0.0.0.0", "--port", "0"))

    assert "set LIVETREE_SECRET" in said
    with program.serving("--host", "0.0.0.0", LIVETREE_SECRET=SECRET) as server:
        assert server.url.startswith("http://0.0.0.0:")
        port = server.url.rpartition(":")[2]
        assert get(f"http://127.0.0.1:{port}/healthz")["status"] == "ok"


def test_one_database_has_one_server(demo: tuple[Program, Running]):
    program, _ = demo
    assert "in use by another livetree server" in sentence(program.run("serve", "--port", "0"))


def test_a_database_of_a_newer_version_is_refused(program: Program):
    with program.serving() as server:
        server.end()
    with sqlite3.connect(program.data / "livetree.db") as database:
        database.execute("UPDATE alembic_version SET version_num = 'from the future'")
    database.close()

    assert "newer livetree" in sentence(program.run("serve", "--port", "0"))


def test_a_file_that_is_no_database_is_refused(program: Program):
    program.data.mkdir()
    (program.data / "livetree.db").write_text("This is a letter to my aunt.")

    assert "not an SQLite database" in sentence(program.run("serve", "--port", "0"))


def test_the_demo_makes_its_topic_once(program: Program):
    for _ in range(2):
        with program.serving("--demo") as server:
            wait_for_demo(program, server)
            listed = program.run("topics", "--name", "welcome", "--url", server.url).stdout
            assert server.end() == 0
            assert server.complaints() == ""
        assert listed.count("Welcome to livetree") == 1


async def test_the_demo_topic_branches(demo: tuple[Program, Running]):
    _, server = demo
    async with livetree.connect(server.url) as client:
        [topic] = (await client.topics("Welcome to livetree")).topics
        async with client.open(topic.id) as live:
            alternatives = [node.id for node in live.tree.nodes() if live.siblings(node)]
            assert len(alternatives) == 4
            [first] = live.children(live.root_id)
            assert live.is_first_turn(first)


def test_the_demo_works_with_a_secret_too(program: Program):
    token = program.run("token", "ada", LIVETREE_SECRET=SECRET).stdout.strip()
    with program.serving("--demo", LIVETREE_SECRET=SECRET) as server:
        done = program.run(
            *("say", "--new-topic", "Hi", "Hello", "--model", "echo", "--url", server.url),
            LIVETREE_TOKEN=token,
        )
    assert done.stdout == "assistant echo: Hello\n"


# Tokens -----------------------------------------------------------------------------------


def test_H3_a_token_opens_a_server_with_a_secret(guarded: tuple[Program, Running]):
    program, server = guarded
    assert "LIVETREE_TOKEN" in sentence(program.run("topics", "--url", server.url))
    for secret, status in ((SECRET, 0), (SECRET[::-1], 1)):
        token = program.run("token", "ada", LIVETREE_SECRET=secret).stdout.strip()
        done = program.run("topics", LIVETREE_TOKEN=token, LIVETREE_URL=server.url)
        assert done.returncode == status, done.stderr


@pytest.mark.parametrize(("rights", "status"), [("*=read", 1), ("a-*=write", 1), ("*=write", 0)])
def test_a_token_allows_what_it_says(guarded: tuple[Program, Running], rights: str, status: int):
    program, server = guarded
    token = program.run("token", "ada", "--topics", rights, LIVETREE_SECRET=SECRET).stdout
    # So large that it is refused while it could still be on its way.
    large = file_of(program.home, TRIP, export("a: user " + "word " * 200_000, id="large"))
    made = program.run("import", large, "--url", server.url, LIVETREE_TOKEN=token.strip())

    assert made.returncode == status, made.stderr
    assert ("a token that may write every topic" in made.stderr) == bool(status)


def test_a_token_needs_the_secret(program: Program):
    assert "LIVETREE_SECRET is not set" in sentence(program.run("token", "ada"))


# Importing --------------------------------------------------------------------------------


def test_files_are_imported_without_a_server_and_only_once(program: Program):
    first = file_of(program.home, TRIP, TALK)
    done = program.run("import", first)

    assert done.returncode == 0, done.stderr
    assert [line.split()[0] for line in done.stdout.splitlines()[:2]] == ["imported"] * 2
    assert done.stdout.splitlines()[2] == (
        f"{first}: 2 topics imported with 5 messages, 0 already there, 0 refused"
    )
    again = program.run("import", first)
    assert again.returncode == 0
    assert "0 topics imported, 2 already there, 0 refused" in again.stdout


@pytest.mark.parametrize("named", [False, True], ids=["found by its data", "named"])
def test_files_are_imported_through_a_server(demo: tuple[Program, Running], named: bool):
    program, server = demo
    # Several files over one connection, one of them large.
    texts = {f"one {named}": "x", f"large {named}": "word " * 100_000, f"three {named}": "y"}
    files = [
        file_of(program.home, export(f"a: user {text}", id=name, title=name), name=f"{name}.json")
        for name, text in texts.items()
    ]
    elsewhere = {"LIVETREE_DATA": "/nowhere"}
    done = (
        program.run("import", *files, "--url", server.url, **elsewhere)
        if named
        else program.run("import", *files)
    )

    assert done.returncode == 0, done.stderr
    assert done.stdout.count("1 topic imported with 1 message,") == 3
    listed = program.run("topics", "--url", server.url).stdout
    assert all(name in listed for name in texts)


def test_what_is_refused_is_named_and_the_rest_comes_in(program: Program):
    path = file_of(program.home, TRIP, BROKEN, TALK)
    done = program.run("import", path)

    assert done.returncode == 1
    assert "2 topics imported with 5 messages, 0 already there, 1 refused" in done.stdout
    place = path.read_bytes().index(b'{"id": "broken"')
    assert re.fullmatch(rf"  refused: record 1, byte {place} 'Broken': .+\n", done.stderr)


def test_strict_takes_all_or_nothing(demo: tuple[Program, Running]):
    program, server = demo
    path = file_of(program.home, export("a: user x", id="strict", title="Strict"), BROKEN)
    for where in (["--data", program.home / "other"], ["--url", server.url]):
        done = program.run("import", "--strict", path, *where)
        assert done.returncode == 1
        assert "0 topics imported, 0 already there, 1 refused" in done.stdout
        assert "nothing was imported" in done.stderr
    assert program.run("topics", "--name", "Strict", "--url", server.url).stdout == ""


def test_a_file_that_breaks_off_gives_what_stands_before_the_break(demo: tuple[Program, Running]):
    program, server = demo
    path = file_of(program.home, TRIP, TALK)
    path.write_bytes(path.read_bytes()[:-40])
    for where in (["--data", program.home / "other"], ["--url", server.url]):
        done = program.run("import", path, *where)
        assert done.returncode == 1
        assert "1 topic imported with 2 messages, 0 already there, 1 refused" in done.stdout
        assert "refused: record 1, byte " in done.stderr
        assert "nothing after it was read" in done.stderr
    assert program.run("topics", "--name", "Talk", "--url", server.url).stdout == ""


@pytest.mark.parametrize("served", [False, True], ids=["direct", "through a server"])
def test_files_that_cannot_be_read_are_named_and_the_others_come_in(
    demo: tuple[Program, Running], served: bool
):
    program, server = demo
    where = ["--url", server.url] if served else ["--data", program.home / "others"]
    (program.home / "letter.json").write_text("Dear aunt")
    (program.home / "empty.json").write_text("")
    names = ("missing.json", "letter.json", "empty.json", ".")
    files = [program.home / name for name in names]
    sound = file_of(program.home, export("a: user x", id="sound"))
    done = program.run("import", *files, sound, *where)

    assert done.returncode == 1
    assert "1 topic imported with 1 message," in done.stdout
    complaints = done.stderr.splitlines()
    assert [line.split(": ")[1] for line in complaints] == [str(file) for file in files]
    assert "No such file" in complaints[0]
    assert "no format that can be read" in complaints[1]
    assert "empty" in complaints[2]
    assert "directory" in complaints[3]


def test_an_import_without_its_server_says_so(program: Program):
    path = file_of(program.home, TRIP)

    assert "no server answers" in sentence(program.run("import", path, "--url", NOBODY))


# Talking ----------------------------------------------------------------------------------


def test_what_is_said_is_answered(demo: tuple[Program, Running]):
    program, server = demo
    program.run("say", "--new-topic", "Echo", "One", "--model", "echo", "--url", server.url)
    done = program.run(
        "say", "Echo", "-", "--model", "echo", "--url", server.url, text="Two\nlines"
    )

    assert (done.returncode, done.stdout) == (0, "assistant echo: Two\nlines\n"), done.stderr
    shown = program.run("tail", "echo", "--once", "--url", server.url).stdout.splitlines()
    assert shown[0].startswith("== Echo (4 messages, commit ")
    assert shown[1:] == [
        "user local: One",
        "assistant echo: One",
        "user local: Two",
        "lines",
        "assistant echo: Two",
        "lines",
    ]


def test_several_models_answer_one_after_the_other(demo: tuple[Program, Running]):
    program, server = demo
    text = "a few words to be echoed"
    done = program.run(
        *("say", "--new-topic", "Two", text, "--model", "echo", "--model", "echo"),
        LIVETREE_URL=server.url,
    )

    assert done.stdout == f"assistant echo: {text}\n" * 2


def test_a_model_that_nobody_serves_is_told_and_leaves_the_topic_free(
    demo: tuple[Program, Running],
):
    program, server = demo
    program.run("say", "--new-topic", "Alone", "Hi", "--model", "echo", "--url", server.url)
    said = sentence(
        program.run("say", "Alone", "Hi", "--model", "nobody", "--wait", "0.5", "--url", server.url)
    )

    assert said.startswith("no bot has begun to answer as 'nobody'")
    done = program.run("say", "Alone", "Again", "--model", "echo", "--url", server.url)
    assert done.stdout == "assistant echo: Again\n"


def test_a_topic_is_followed_while_it_changes(demo: tuple[Program, Running]):
    program, server = demo
    program.run("say", "--new-topic", "Follow", "One", "--model", "echo", "--url", server.url)
    with program.start("tail", "Follow", "--url", server.url) as tail:
        tail.lines_until("assistant echo: One")
        program.run("say", "Follow", "Two and three", "--model", "echo", "--url", server.url)
        seen = tail.lines_until("~ assistant echo: done")

        assert [re.sub(r"#\d+", "#", line) for line in seen] == [
            "# turn.submit by local",
            "  + user local: Two and three",
            "  + assistant echo: (to be written)",
            "assistant echo: Two and three",
            "# stream.finish by local",
            "  ~ assistant echo: done",
        ]
        assert (tail.end(signal.SIGINT), tail.line(), tail.complaints()) == (130, "", "")


def test_following_a_topic_outlives_the_server(program: Program):
    program.run("import", file_of(program.home, TRIP))
    with program.serving() as server:
        port = server.url.rpartition(":")[2]
        with program.start("tail", "Trip", "--url", server.url) as tail:
            tail.lines_until("assistant: Home")
            assert server.end() == 0
            tail.lines_until("-- the connection is lost")
            with program.serving("--port", port):
                tail.lines_until("-- connected again")
                assert (tail.end(signal.SIGINT), tail.complaints()) == (130, "")


async def test_every_kind_of_change_is_told(demo: tuple[Program, Running]):
    program, server = demo
    async with livetree.connect(server.url) as client:
        topic = await client.create_topic("Changes")
        async with client.open(topic.id) as live:
            first = await live.create("Hello\x1b[2J", parent=live.root_id)
            with program.start("tail", topic.id, "--url", server.url) as tail:
                tail.lines_until("user local: Hello[2J")
                await live.update(first.message_id, text="Good day")
                other = await live.edit(first.message_id, "Hi")
                await live.set_active(first.message_id)
                await live.delete(other.message_id)
                await live.rename("Changed")
                await live.set_metadata({"a": 1})
                await client.delete_topic(topic.id)
                seen = tail.lines_until("-- the topic is gone")
                assert tail.process.wait(30) == 0

    assert [line.strip() for line in seen if not line.startswith("#")][:-1] == [
        "~ user local now says: Good day",
        "+ user local: Hi",
        "> selected is user local: Good day",
        "- 1 message deleted",
        "> selected is user local: Good day",
        "~ the topic is called Changed",
        "~ the topic's metadata changed",
    ]


@pytest.mark.parametrize(
    ("topic", "says"),
    [
        ("nowhere at all", "there is no topic"),
        ("no-such-id", "there is no topic"),
        ("", "no topic"),
    ],
)
def test_a_topic_that_is_not_there_is_told(demo: tuple[Program, Running], topic: str, says: str):
    program, server = demo

    assert says in sentence(program.run("tail", topic, "--url", server.url))


def test_a_topic_that_is_not_named_clearly_is_told(program: Program):
    names = ["Trip to Rome", "Trip to Oslo", "Trip"]
    conversations = [export("a: user x", id=name, title=name) for name in names]
    program.run("import", file_of(program.home, *conversations))
    with program.serving() as server:
        said = sentence(program.run("tail", "trip to", "--once", "--url", server.url))
        assert "several topics" in said
        assert all(name in said for name in names[:2])
        # The whole name of one is clear, whatever others begin with.
        exact = program.run("tail", "Trip", "--once", "--url", server.url)
        assert exact.stdout.startswith("== Trip (1 messages")


def test_topics_are_listed_in_pages(program: Program):
    conversations = [
        export(f"a: user {number}", id=str(number), title=f"Topic {number}") for number in range(5)
    ]
    program.run("import", file_of(program.home, *conversations))
    with program.serving() as server:
        few = program.run("topics", "--limit", "2", "--url", server.url)
        named = program.run("topics", "--name", "topic 3", "--url", server.url)
        none = program.run("topics", "--name", "other", "--url", server.url)

    assert len(few.stdout.splitlines()) == 3
    assert "there are more" in few.stderr
    assert [line.split("  ")[-1] for line in named.stdout.splitlines()] == ["NAME", "Topic 3"]
    assert (none.returncode, none.stdout) == (0, "")


# Bots -------------------------------------------------------------------------------------


def test_a_bot_echoes_until_it_is_stopped(demo: tuple[Program, Running]):
    program, server = demo
    with (
        program.start("bot", "echo", "--as", "parrot", "--delay", "0", "--url", server.url) as bot,
    ):
        done = program.run(
            *("say", "--new-topic", "Birds", "Polly", "--model", "parrot", "--url", server.url)
        )
        assert done.stdout == "assistant parrot: Polly\n", done.stderr
        assert bot.end(signal.SIGTERM) == 0
        assert "Traceback" not in bot.complaints()


def test_a_bot_answers_through_an_endpoint(demo: tuple[Program, Running]):
    program, server = demo
    with (
        chat_endpoint() as endpoint,
        program.start(
            *("bot", "openai", "--base-url", endpoint.url, "--model", "good", "--as", "clever"),
            *("--key-env", "MY_KEY", "--url", server.url),
            MY_KEY="k-1",
        ) as bot,
    ):
        say = ("say", "--model", "clever", "--url", server.url)
        done = program.run(*say, "--new-topic", "Weather", "What is the weather like?")
        assert done.returncode == 0, done.stderr + bot.complaints()
        assert done.stdout.splitlines() == [
            "assistant clever, thinking: Let me think.",
            *"assistant clever: It is\u2028a fine day: ☀".splitlines(),
        ]
        program.run(*say, "Weather", "And tomorrow?")

    assert [headers["authorization"] for headers, _ in endpoint.requests] == ["Bearer k-1"] * 2
    # Reasoning is not said again.
    assert endpoint.requests[1][1]["messages"] == [
        {"role": "user", "content": "What is the weather like?"},
        {"role": "assistant", "content": "It is\u2028a fine day: ☀"},
        {"role": "user", "content": "And tomorrow?"},
    ]


def test_an_endpoint_that_fails_ends_the_answer_as_an_error(demo: tuple[Program, Running]):
    program, server = demo
    with (
        chat_endpoint() as endpoint,
        program.start(
            *("bot", "openai", "--base-url", endpoint.url, "--model", "down"),
            *("--url", server.url),
        ) as bot,
    ):
        done = program.run(
            *("say", "--new-topic", "Down", "Hi", "--model", "down", "--url", server.url)
        )
        assert sentence_at_the_end(done) == "the answer of 'down' ended as an error"
        log = bot.complaints()

    assert "answered 500 Internal Server Error: the model is overloaded" in log
    assert "Traceback" not in log


def sentence_at_the_end(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 1
    return done.stderr.splitlines()[-1].removeprefix("livetree: ")


async def test_L9_stopping_an_answer_ends_what_was_asked_of_the_endpoint(
    demo: tuple[Program, Running],
):
    program, server = demo
    with (
        chat_endpoint() as endpoint,
        program.start(
            *("bot", "openai", "--base-url", endpoint.url, "--model", "slow"),
            *("--url", server.url),
        ),
    ):
        async with livetree.connect(server.url) as client:
            topic = await client.create_topic("Slow")
            async with client.open(topic.id) as live:
                [reply] = (await live.submit("Hi", models=["slow"])).placeholder_ids
                await live.wait_for(lambda live: live.text(reply) == "It is\u2028a ")
                await live.abort(reply)
                assert live.node(reply).status == "paused"
        assert await asyncio.to_thread(endpoint.gone.wait, 30)
