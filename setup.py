"""What pyproject.toml cannot say yet: cffi's modules, and one wheel for all CPythons."""

from setuptools import setup

setup(
    cffi_modules=["bindings/build.py:ffibuilder"],
    options={"bdist_wheel": {"py_limited_api": "cp310"}},
)
