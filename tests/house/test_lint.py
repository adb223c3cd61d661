import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("tool", ["ruff check", "ruff format --check", "mypy"])
def test_style_and_types(tool: str):
    command = [sys.executable, "-m", *tool.split()]

    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)

    assert done.returncode == 0, f"{done.stdout}{done.stderr}\n`python3 dev format` may help"
