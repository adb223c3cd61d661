import fnmatch
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import pytest

ROOT = Path(__file__).parents[2]
TOP_LEVEL = {
    *("pyproject.toml", "server", "client_sdk", "tests", "deploy", "docs", "requirements", "dev"),
    *("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "LICENSE", ".ci"),
}
LARGEST = 1024 * 1024
# In pieces, so that this file is not the first to break its own rules.
REGISTRIES = ["pypi" + ".org", "python" + "hosted", "npm" + "js.", "yarn" + "pkg.com"]
ABSOLUTE_PATHS = ["/" + "work/", "/" + "root/"]


def files() -> list[str]:
    """Return the files that are in the repository, or would be after `git add`."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        listed = subprocess.run(command, cwd=ROOT, capture_output=True, check=True, text=True)
    except (OSError, subprocess.CalledProcessError):  # no git, or a copy without its history
        return sorted(walk())
    return sorted(name for name in listed.stdout.split("\0") if (ROOT / name).is_file())


def walk() -> Iterator[str]:
    """Yield the files that .gitignore does not name; all its patterns are those of one name."""
    lines = (ROOT / ".gitignore").read_text("utf-8").split("\n")
    ignored = [line.strip("/") for line in lines if line and not line.startswith("#")]
    for folder, subfolders, names in os.walk(ROOT):
        for name in [*subfolders]:
            if name == ".git" or any(fnmatch.fnmatch(name, pattern) for pattern in ignored):
                subfolders.remove(name)
        for name in names:
            if not any(fnmatch.fnmatch(name, pattern) for pattern in ignored):
                yield (Path(folder) / name).relative_to(ROOT).as_posix()


def complaints(name: str, content: bytes) -> list[str]:
    """Tell why a file does not belong into the repository; nothing, if the list is empty."""
    text = content.decode("utf-8", "replace")
    found = [f"names {word}" for word in [*REGISTRIES, *ABSOLUTE_PATHS] if word in text]
    top = PurePosixPath(name).parts[0]
    if top not in TOP_LEVEL and not (top.startswith(".") and top == name):
        found.append("has no place at the top level")
    if top == "requirements" and re.search("https?://", text):
        found.append("names a URL, where a version and its hashes are enough")
    if len(content) > LARGEST:
        found.append(f"is larger than {LARGEST} bytes")
    return found


def test_every_file_belongs_here():
    found = {name: complaints(name, (ROOT / name).read_bytes()) for name in files()}

    assert {name: why for name, why in found.items() if why} == {}


def test_files_are_found_without_git_too():
    assert {"pyproject.toml", ".ci/run", "tests/house/test_tracked_files.py"} <= set(files())
    assert set(walk()) == set(files())


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("docs/a.md", "https://" + REGISTRIES[0] + "/simple"),
        ("server/console/package-lock.json", "registry." + REGISTRIES[2] + "org"),
        ("requirements/a.txt", "--index-url http" + "://127.0.0.1/simple"),
        ("tests/a.py", "open('" + ABSOLUTE_PATHS[0] + "a')"),
        ("deploy/a.sh", "cd " + ABSOLUTE_PATHS[1]),
        ("notes.txt", ""),
        ("scripts/a.sh", ""),
        (".cache/a", ""),
        ("docs/a.md", "x" * (LARGEST + 1)),
    ],
    ids=range(9),
)
def test_what_does_not_belong_is_seen(name: str, content: str):
    assert len(complaints(name, content.encode())) == 1


@pytest.mark.parametrize("name", ["README.md", ".gitignore", ".ci/run", "dev", "server/a/b.py"])
def test_what_belongs_passes(name: str):
    assert complaints(name, b"") == []
