"""A project of Django's on real daemons: migrations at one station, rows at others, its own tests."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from .test_database import Databases, databases

pytestmark = [pytest.mark.lab, pytest.mark.slow]

ROOT = Path(__file__).resolve().parents[2]
PROJECT = Path(__file__).parent / "django_project"
BOTH = """
from django.db import OperationalError, transaction
from items.models import Item, Maker
from zenjun.db import SerializationError

def transfer(number):
    while True:
        try:
            with transaction.atomic():
                item = Item.objects.get(name="bolt")
                item.stock = item.stock + 1
                item.save()
            return
        except OperationalError as error:
            assert isinstance(error.__cause__, SerializationError), error

for number in range(20):
    transfer(number)
    Maker.objects.create(name=f"STATION {number}")
print(Item.objects.select_related("maker").get().maker.name)
"""


@pytest.fixture(scope="module")
def shop() -> Iterator[Databases]:
    with databases() as up:
        up.ask(1, "create", db="shop")
        up.until_equal()
        yield up


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy, because Django looks for its tests from the outermost package on."""
    folder = tmp_path_factory.mktemp("project") / "shop"
    shutil.copytree(PROJECT, folder, ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "__init__.py").unlink()
    return folder


def manage(project: Path, shop: Databases, station: int, *words: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "SOCKET": shop.socket(station)}
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    argv = [sys.executable, "manage.py", *words]
    return subprocess.Popen(argv, cwd=project, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def done(process: subprocess.Popen[str]) -> str:
    out, _ = process.communicate(timeout=240)
    assert process.returncode == 0, out
    return out


def test_a_project(shop: Databases, project: Path) -> None:
    out = done(manage(project, shop, 1, "migrate", "--verbosity=1"))
    assert "items.0002_more... OK" in out
    shop.until_equal()
    assert "No changes detected" in done(manage(project, shop, 2, "makemigrations", "--check", "--dry-run"))
    both = [manage(project, shop, station, "shell", "-c", BOTH.replace("STATION", str(station))) for station in (2, 3)]
    assert [done(each).splitlines()[-1] for each in both] == ["first", "first"]
    shop.until_equal()
    with shop.connect(1) as c:
        assert c.execute("SELECT stock FROM items_item").fetchall() == [(40,)]
        assert c.execute("SELECT count(*), sum(name = 'third') FROM items_maker").fetchall() == [(42, 0)]
    c.close()
    tested = done(manage(project, shop, 3, "test", "--noinput"))
    assert "Ran 2 tests" in tested and "OK" in tested
    shop.until_equal()
    assert "test_shop" not in shop.run(1, "db", "list").stdout
