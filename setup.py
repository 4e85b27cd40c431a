"""What pyproject.toml cannot say yet: cffi's modules, one wheel for all CPythons, and compiling the
C files side by side (setuptools takes one after another).
"""

import os
from concurrent.futures import ThreadPoolExecutor

from setuptools import setup
from setuptools.command.build_ext import build_ext


class ParallelBuild(build_ext):
    """Each file is a compiler of its own, so threads are enough."""

    def build_extensions(self) -> None:
        compile_some = self.compiler.compile

        def compile_all(sources: list[str], **options: object) -> list[str]:
            with ThreadPoolExecutor(os.cpu_count()) as pool:
                parts = pool.map(lambda source: compile_some([source], **options), sources)
                return [made for part in parts for made in part]

        self.compiler.compile = compile_all
        super().build_extensions()


setup(
    cmdclass={"build_ext": ParallelBuild},
    cffi_modules=["bindings/build.py:ffibuilder"],
    options={"bdist_wheel": {"py_limited_api": "cp310"}},
)
