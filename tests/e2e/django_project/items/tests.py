"""The project's own tests, for which Django makes a database."""

import datetime
from decimal import Decimal

from django.db import IntegrityError, transaction
from django.test import TestCase

from .models import Item, Maker


class ItemTests(TestCase):
    def test_values_come_back(self) -> None:
        maker = Maker.objects.create(name="a")
        made = datetime.datetime(2026, 1, 2, 3, 4, 5, 678, tzinfo=datetime.UTC)
        Item.objects.create(maker=maker, name="nut", price=Decimal("12.30"), made=made, facts={"a": [1, None]})
        item = maker.items.get(facts__a__0=1)
        self.assertEqual((item.price, item.made, item.facts), (Decimal("12.30"), made, {"a": [1, None]}))

    def test_what_is_violated(self) -> None:
        Maker.objects.create(name="a")
        with self.assertRaises(IntegrityError), transaction.atomic():
            Maker.objects.create(name="a")
        self.assertEqual(Maker.objects.filter(name="a").count(), 1)
