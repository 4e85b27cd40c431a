from setuptools import setup  # for what pyproject.toml cannot say yet: cffi modules, one wheel for every CPython

setup(cffi_modules=["bindings/build.py:ffibuilder"], options={"bdist_wheel": {"py_limited_api": "cp310"}})
