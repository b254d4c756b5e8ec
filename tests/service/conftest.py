"""One engine, one image and one package for all tests here."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from zenjun.tools.packaging import deb

from ..conftest import NO_DOCKER
from .engine import Engine, Machine, Missing, machine


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if item.path.is_relative_to(here):
            item.add_marker(pytest.mark.docker)


@pytest.fixture(scope="session")
def engine() -> Iterator[Engine]:
    try:
        made = Engine()
        with made:
            made.image()
            yield made
    except Missing as missing:
        pytest.skip(f"{NO_DOCKER}: {missing}")


@pytest.fixture(scope="session")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Debian package of this checkout, made now."""
    folder = tmp_path_factory.mktemp("package")
    return deb.build(folder, folder / "work")


@pytest.fixture(scope="module")
def box(engine: Engine, package: Path) -> Iterator[Machine]:
    """A machine with the package on it, not yet installed: /root/zenjun.deb. Only where systemd does not even come up in a bare
    container, before anything of ours is in it, may they be done without."""
    try:
        with machine(engine, "probe"):
            pass
    except Exception as error:
        pytest.skip(f"{NO_DOCKER}: systemd does not come up in a container: {error}")
    with machine(engine, "box") as made:
        made.copy_in(package, "/root/zenjun.deb")
        yield made
