"""The Node packages of `tests/node`, and the programs in there."""

import os
import shutil
from pathlib import Path

import pytest
from support.processes import ManagedProcess

FOLDER = Path(__file__).parents[1] / "node"


def missing(what, how):
    """Skip a test whose part is not installed; where CI is set, fail it, since nobody would notice."""
    message = f"{what} is not installed; {how}"
    if os.environ.get("CI"):
        pytest.fail(message)
    pytest.skip(message)


def node(script, *arguments):
    """A Node program of `tests/node`."""
    if shutil.which("node") is None or not (FOLDER / "node_modules").is_dir():
        missing("the Node SDK", "run `bash tests/setup.sh`")
    return ManagedProcess("node", script, *arguments, cwd=FOLDER)
