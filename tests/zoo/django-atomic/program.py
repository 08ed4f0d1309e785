"""Note each payment and add it to its balance with Django's models, inside transaction.atomic()."""

import csv
import os

import django
from django.conf import settings

DATABASE = {"ENGINE": "django.db.backends.postgresql", "NAME": os.environ["PGDATABASE"], "USER": os.environ["PGUSER"]}
settings.configure(DATABASES={"default": DATABASE}, INSTALLED_APPS=[])
django.setup()

from django.db import connection, models, transaction  # noqa: E402 (Django wants to be configured first)


class Account(models.Model):
    """A balance in cents."""

    account = models.TextField(primary_key=True)
    cents = models.BigIntegerField()

    class Meta:
        app_label = "zoo"
        db_table = "account"


class Applied(models.Model):
    """The note of a payment."""

    payment_id = models.TextField(primary_key=True)

    class Meta:
        app_label = "zoo"
        db_table = "applied"


def settle(row: dict[str, str]) -> None:
    """Apply one payment."""
    with transaction.atomic():
        _, is_new = Applied.objects.get_or_create(payment_id=row["payment_id"])
        if is_new:
            Account.objects.filter(account=row["account"]).update(cents=models.F("cents") + int(row["cents"]))


with open("payments.csv") as file:
    for payment in csv.DictReader(file):
        settle(payment)
connection.close()
