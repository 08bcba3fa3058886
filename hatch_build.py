"""Compiles the kernel, which is optional, when the package is built or installed.

Run by itself, it compiles in place, with options for the compiler.
"""

from __future__ import annotations

import shlex
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any, Final

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SOURCE: Final = "sidecar/kernel/_kernel.c"
TARGET: Final = f"sidecar/kernel/_kernel{sysconfig.get_config_var('EXT_SUFFIX')}"


class KernelBuildHook(BuildHookInterface):  # type: ignore[type-arg]
    """Puts the compiled module beside its source, where an editable install finds it too."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:  # noqa: ARG002 - the hook's interface
        """Compile."""
        root = Path(self.root)
        try:
            compile_kernel(root)
        except (OSError, subprocess.CalledProcessError) as error:
            self.app.display_warning(f"the kernel can't be compiled, and the sidecar goes without it: {error}")
            (root / TARGET).unlink(missing_ok=True)  # an older one
            return
        build_data["artifacts"].append(f"/{TARGET}")
        build_data["pure_python"] = False
        build_data["infer_tag"] = True


def compile_kernel(root: Path, *options: str) -> None:
    """Compile and link as this Python's own extension modules were.

    Raises:
        OSError: there is no compiler.
        subprocess.CalledProcessError: it fails; without Python's headers, for one.
    """
    new = (root / TARGET).with_suffix(".new")
    command = [
        *shlex.split(" ".join(sysconfig.get_config_vars("LDSHARED", "CCSHARED"))),
        *("-std=c11", "-O2", "-Wall", "-Wextra", "-Wno-missing-field-initializers"),
        *options,
        f"-I{sysconfig.get_path('include')}",
        *(str(root / SOURCE), "-o", str(new)),
    ]
    subprocess.run(command, check=True)  # noqa: S603 - the compiler that Python was built with
    new.replace(root / TARGET)  # a process that has the old one open goes on with it


if __name__ == "__main__":
    compile_kernel(Path(__file__).parent, *sys.argv[1:])
