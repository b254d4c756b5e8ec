"""Two tables."""

from django.db import migrations, models


class Migration(migrations.Migration):
    initial = True
    operations = (
        migrations.CreateModel(
            "Maker",
            [
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("name", models.CharField(max_length=20)),
            ],
        ),
        migrations.CreateModel(
            "Item",
            [
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("maker", models.ForeignKey("items.Maker", on_delete=models.CASCADE, related_name="items")),
                ("name", models.CharField(max_length=40)),
                ("price", models.DecimalField(max_digits=8, decimal_places=2)),
                ("made", models.DateTimeField(null=True)),
                ("facts", models.JSONField(default=dict)),
            ],
        ),
    )
