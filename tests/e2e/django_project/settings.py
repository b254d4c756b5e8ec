"""The least that Django needs, and the database."""

import os

DATABASES = {"default": {"ENGINE": "zenjun.db.django", "NAME": "shop", "OPTIONS": {"socket": os.environ["SOCKET"]}}}
INSTALLED_APPS = ["items"]
SECRET_KEY = "of tests"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
USE_TZ = True
