import importlib
import inspect
import types
from pathlib import Path

import pytest

SDK = Path(__file__).parents[2] / "client_sdk/python"
MODULES = [
    ".".join(path.relative_to(SDK).with_suffix("").parts).removesuffix(".__init__")
    for path in sorted((SDK / "livetree").rglob("*.py"))
    if not any(
        part.startswith("_") and part != "__init__.py" for part in path.relative_to(SDK).parts
    )
]


def complaints(module: types.ModuleType) -> list[str]:
    """Tell what a user of the module would miss."""
    if (names := getattr(module, "__all__", None)) is None:
        return ["has no __all__"]
    return [f"{name} {complaint}" for name in names if (complaint := complaint_about(module, name))]


def complaint_about(module: types.ModuleType, name: str) -> str | None:
    if not hasattr(module, name):
        return "does not exist"
    value = getattr(module, name)
    if not inspect.isclass(value) and not inspect.isroutine(value):
        return None
    # What dataclasses write, where nobody has, is the signature.
    if not value.__doc__ or value.__doc__.startswith(f"{name}("):
        return "has no docstring"
    return None


@pytest.mark.parametrize("name", MODULES)
def test_public_names_exist_and_say_what_they_promise(name: str):
    assert complaints(importlib.import_module(name)) == []


@pytest.mark.parametrize(
    ("source", "complaint"),
    [
        ("a = 1", "has no __all__"),
        ("__all__ = ['a']", "a does not exist"),
        ("__all__ = ['a']\ndef a(): pass", "a has no docstring"),
        ("__all__ = ['A']\nclass A: pass", "A has no docstring"),
        (
            "__all__ = ['A']\nimport dataclasses\n@dataclasses.dataclass\nclass A: pass",
            "A has no docstring",
        ),
    ],
)
def test_what_is_missing_is_seen(source: str, complaint: str):
    module = types.ModuleType("example")
    exec(source, module.__dict__)

    assert complaints(module) == [complaint]


def test_what_is_complete_passes():
    module = types.ModuleType("example")
    exec("__all__ = ['a', 'B']\na = 1\nclass B:\n    'Says something.'\n", module.__dict__)

    assert complaints(module) == []
