"""The built layer, loaded as Lambda loads it: by an interpreter that has nothing else of ours."""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from infra.local.deploy import ROOT, build_layer

MAX_ZIPPED_BYTES = 10_000_000
# What Lambda's Python brings, and no more of the environment that runs the tests.
OF_THE_RUNTIME = ("boto3", "botocore", "s3transfer", "urllib3", "dateutil", "six")
# Loads a function's module with only the layer and the SDK beside the standard library, then says what it took.
BARE = """
import json, sys, time
layer, sdk, function, handler = sys.argv[1:]
sys.path[:0] = [function, layer, sdk]
before = time.perf_counter()
import app
assert callable(getattr(app, handler)), handler
import tallymark
print(json.dumps({
    "milliseconds": (time.perf_counter() - before) * 1000,
    "tallymark": tallymark.__file__,
    "modules": sorted(name for name in sys.modules if "." not in name),
}))
# What is imported on first use only.
import boto3, valkey
boto3.client("dynamodb", region_name="us-east-1")
"""


@pytest.fixture(scope="module")
def layer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The layer as it lies in /opt."""
    folder = tmp_path_factory.mktemp("layer")
    with zipfile.ZipFile(build_layer()) as archive:
        archive.extractall(folder)
    return folder / "python"


@pytest.fixture(scope="module")
def sdk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The SDK and what it stands on."""
    folder = tmp_path_factory.mktemp("sdk")
    for name in OF_THE_RUNTIME:
        found = importlib.util.find_spec(name)
        assert found is not None
        assert found.origin is not None
        origin = Path(found.origin)
        package = origin.parent if origin.name == "__init__.py" else origin
        (folder / package.name).symlink_to(package)
    return folder


def test_it_is_small() -> None:
    assert build_layer().stat().st_size < MAX_ZIPPED_BYTES


def test_it_holds_our_package_without_the_command_line(layer: Path) -> None:
    assert (layer / "tallymark" / "likes.py").exists()
    for left_out in ("tallymark/cli", "chalice/cli", "chalice/deploy", "bin"):
        assert not (layer / left_out).exists(), left_out
    assert not list(layer.rglob("*.so")), "one layer for every processor"


def test_it_is_built_to_the_same_bytes_wherever_the_project_lies(tmp_path: Path) -> None:
    root = tmp_path / "a folder's name"
    for name in ("layers/core", "requirements"):
        shutil.copytree(ROOT / name, root / name)
    again = build_layer(root, cache=tmp_path / "built here")
    assert again.read_bytes() == build_layer().read_bytes()


@pytest.mark.parametrize("function", sorted(path.parent.name for path in ROOT.glob("functions/*/app.py")))
def test_a_function_finds_everything_it_imports(function: str, layer: Path, sdk: Path) -> None:
    handler = "app" if function.endswith("_api") else "handler"
    command = [sys.executable, "-I", "-S", "-c", BARE, str(layer), str(sdk), str(ROOT / "functions" / function)]
    done = subprocess.run([*command, handler], capture_output=True, text=True, env={}, check=False)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["tallymark"].startswith(str(layer))
    assert "boto3" not in report["modules"], "importing a handler opens no client"
