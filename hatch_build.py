"""Compiles the optional kernel when the package is built or installed; without a compiler there is none, and it is slower."""

from __future__ import annotations

import shlex
import subprocess
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SOURCE = Path("sidecar/kernel/_kernel.c")


class KernelBuildHook(BuildHookInterface):
    """Puts the compiled module beside its source, where an editable install finds it too."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile."""
        target = SOURCE.with_name(f"_kernel{sysconfig.get_config_var('EXT_SUFFIX')}")
        try:
            compile_kernel(Path(self.root) / SOURCE, Path(self.root) / target)
        except (OSError, subprocess.CalledProcessError) as error:
            self.app.display_warning(f"the kernel can't be compiled, and the sidecar goes without it: {error}")
            (Path(self.root) / target).unlink(missing_ok=True)  # an older one
            return
        build_data["artifacts"].append(f"/{target}")
        build_data["pure_python"] = False
        build_data["infer_tag"] = True


def compile_kernel(source: Path, target: Path, *options: str) -> None:
    """Compile and link as this Python's own extension modules were.

    Raises:
        OSError: there is no compiler.
        subprocess.CalledProcessError: it fails; without Python's headers, for one.
    """
    flags = shlex.split(" ".join(sysconfig.get_config_vars("LDSHARED", "CCSHARED")))
    include = sysconfig.get_path("include")
    # A process that has the old one open goes on with it.
    new = target.with_suffix(".new")
    command = [*flags, "-std=c11", "-O2", *options, f"-I{include}", str(source), "-o", str(new)]
    subprocess.run(command, check=True)
    new.replace(target)
