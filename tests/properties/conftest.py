"""Fixtures for the laws."""

import logging
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Do not log: callbacks fail on purpose here, thousands of times."""
    logging.disable()
    yield
    logging.disable(logging.NOTSET)
