"""What every test shares."""

import os
from pathlib import Path

import pytest
from hypothesis import settings

# A helper's assert shows its operands, as those of the tests themselves do.
FOLDERS = [path.name for path in Path(__file__).parent.iterdir() if path.is_dir()]
pytest.register_assert_rewrite(*(f"tests.{name}" for name in FOLDERS))

# The same examples on each run, so that a red build is the doing of the change at hand.
settings.register_profile("ci", max_examples=100, deadline=None, derandomize=True)
# New examples on each run, and many; a failure prints what replays it.
settings.register_profile("soak", max_examples=5_000, deadline=None, print_blob=True)
settings.load_profile("soak" if os.environ.get("LIVETREE_SOAK") == "1" else "ci")
