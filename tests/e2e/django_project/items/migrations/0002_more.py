"""A table to which others refer is made again, between rows that a function of the migration writes."""

from typing import Any

from django.db import migrations, models, transaction


def before(apps: Any, editor: Any) -> None:
    maker = apps.get_model("items", "Maker").objects.create(name="first")
    apps.get_model("items", "Item").objects.create(maker=maker, name="bolt", price="1.50")


def after(apps: Any, editor: Any) -> None:
    makers = apps.get_model("items", "Maker").objects
    with transaction.atomic():
        makers.create(name="second")
    try:
        with transaction.atomic():
            makers.create(name="third")
            makers.create(name="second")
    except Exception as error:
        assert "UNIQUE" in str(error)


class Migration(migrations.Migration):
    dependencies = (("items", "0001_initial"),)
    operations = (
        migrations.RunPython(before),
        migrations.AlterField("Maker", "name", models.CharField(max_length=40, unique=True)),
        migrations.AddField("Item", "stock", models.PositiveIntegerField(default=0)),
        migrations.RunPython(after),
    )
