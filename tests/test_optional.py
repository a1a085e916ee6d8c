"""Packages that are loaded on first use."""

import subprocess
import sys

import pytest

from reap.optional import load, tensordict


def test_loads_a_package_and_a_module_of_it():
    import tensordict as expected

    assert tensordict() is expected
    assert load("tensordict.nn") is expected.nn


@pytest.mark.parametrize(
    ("name", "user", "text"),
    [
        (
            "ray",
            "RayCollector",
            'ray is not installed, and RayCollector needs it. Install it: pip install "reap[ray]"',
        ),
        (
            "nosuchpackage.inner",
            "",
            "nosuchpackage is not installed, and what you call needs it. Install it: pip install nosuchpackage",
        ),
    ],
)
def test_a_missing_package_is_named_with_its_install_line(monkeypatch, name, user, text):
    package = name.partition(".")[0]
    if package == "ray":  # which may be installed here
        monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ImportError) as caught:
        load(name, user)
    assert str(caught.value) == text
    assert caught.value.name == package


def test_the_error_of_a_broken_package_is_its_own(tmp_path, monkeypatch):
    (tmp_path / "brokenpackage.py").write_text("import nosuchdependency\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="nosuchdependency"):
        load("brokenpackage")


@pytest.mark.processes
def test_specs_do_not_import_tensordict():
    code = """
import sys, reap.specs as s
class AskedFor(Exception): ...
class Finder:
    def find_spec(self, name, *arguments):
        if name == "tensordict":  # which takes seconds
            raise AskedFor
sys.meta_path.insert(0, Finder())
s.Composite(a=s.Bounded(-1, 1, 3)).is_in({"a": s.Bounded(-1, 1, 3).rand()})
assert "tensordict" not in sys.modules
try:
    s.Composite(a=s.Unbounded(3)).rand()
except AskedFor:
    print("here")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=180)
    assert done.stdout == "here\n"
