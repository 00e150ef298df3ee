"""A start-up that takes a second, as an import of torch does."""

import os
import time


def startup():
    time.sleep(1.0)


def environment(request, progress):
    return {"value": os.environ.get(request["name"])}
