"""Start-ups that take a second, as an import of torch does, or end badly."""

import os
import sys
import time


def startup():
    time.sleep(1.0)


def forever():
    time.sleep(600)


def aborts():
    os.abort()


def leaves():
    sys.exit(3)


def environment(request, progress):
    return {"value": os.environ.get(request["name"])}
