"""python -m tests.house.generate: writes the files that are made of the code."""

from collections.abc import Callable
from pathlib import Path

from livetree.core.schema import json_schema

from tests.conformance.vectors import as_text, digest_vectors

ROOT = Path(__file__).parents[2]
GENERATED: dict[str, Callable[[], str]] = {
    "docs/schema.json": lambda: as_text(json_schema()),
    "tests/conformance/digest.json": lambda: as_text(digest_vectors()),
}


def main() -> None:
    """Write each file anew."""
    for name, make in GENERATED.items():
        (ROOT / name).write_text(make(), "utf-8")
        print(name)


if __name__ == "__main__":
    main()
