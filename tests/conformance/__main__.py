"""python -m tests.conformance [DIR] [--through core|server|both] [--area a,b]."""

import argparse
import logging
import sys
from pathlib import Path

from .backends import BACKENDS
from .runner import CASES, load, run, tally


def main(arguments: list[str]) -> int:
    """Run cases, tell what came of them, and return the exit code: 1 if any failed."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.conformance", description="Run the JSON cases of the message tree."
    )
    parser.add_argument("folder", nargs="?", type=Path, default=CASES, metavar="DIR")
    parser.add_argument("--through", choices=[*BACKENDS, "both"], default="both")
    parser.add_argument("--area", default="", help="areas to run, by commas; all if none is given")
    asked = parser.parse_args(arguments)
    areas = [area for area in asked.area.split(",") if area]
    cases = load(asked.folder, areas)
    if not cases:
        print(f"there are no cases in {asked.folder}" + (f" of {asked.area}" if areas else ""))
        return 1
    names = [*BACKENDS] if asked.through == "both" else [asked.through]
    failed = 0
    # What a server logs of the harm that a case does to it is no news.
    logging.getLogger("livetree").addHandler(logging.NullHandler())
    for name in names:
        outcomes = [run(area, case, BACKENDS[name](case)) for area, case in cases]
        for line in tally(outcomes):
            print(f"{name}: {line}")
        counts = {
            kind: sum(each.kind == kind for each in outcomes)
            for kind in ("passed", "failed", "not yet")
        }
        print(f"{name}: " + ", ".join(f"{count} {kind}" for kind, count in counts.items()))
        failed += counts["failed"]
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
