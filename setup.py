"""Builds the C runtime beside the Python files; everything else is in pyproject.toml."""

import runpy
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.build_py import build_py

SOURCE = Path(__file__).parent / "src" / "smidgen" / "runtime"


class BuildWithRuntime(build_py):
    def run(self) -> None:
        super().run()
        folder = SOURCE if self.editable_mode else Path(self.build_lib) / "smidgen" / "runtime"
        compile_runtime = runpy.run_path(str(SOURCE / "build.py"))["compile_runtime"]
        compile_runtime(folder / "libsmidgen.so", fast=True)


class PlatformWheel(Distribution):
    def has_ext_modules(self) -> bool:
        return True


setup(cmdclass={"build_py": BuildWithRuntime}, distclass=PlatformWheel)
