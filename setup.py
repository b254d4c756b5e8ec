"""Only what pyproject.toml cannot say: the C modules, built by cffi in API mode."""

import os

from setuptools import setup

setup(
    options={"build_ext": {"parallel": os.cpu_count() or 1}},
    cffi_modules=[
        "tools/cmodules.py:core",
        "tools/cmodules.py:corosync",
        "tools/cmodules.py:database",
        "tools/cmodules.py:datapath",
        "tools/cmodules.py:load",
        "tools/cmodules.py:pcap",
    ],
)
