"""Makers, and items of theirs."""

from django.db import models


class Maker(models.Model):
    name = models.CharField(max_length=40, unique=True)


class Item(models.Model):
    maker = models.ForeignKey(Maker, on_delete=models.CASCADE, related_name="items")
    name = models.CharField(max_length=40)
    price = models.DecimalField(max_digits=8, decimal_places=2)
    stock = models.PositiveIntegerField(default=0)
    made = models.DateTimeField(null=True)
    facts = models.JSONField(default=dict)
