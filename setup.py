"""Only what pyproject.toml cannot say: the C modules, built by cffi in API mode."""

from setuptools import setup

setup(
    cffi_modules=[
        "proto/core/build.py:ffi",
        "daemon/datapath/build.py:ffi",
        "tools/bench/build.py:ffi",
        "tools/pcap/native/build.py:ffi",
    ],
)
