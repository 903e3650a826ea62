"""An application that is imported once the file that HOLD names is gone."""

import os
import time
from pathlib import Path

from tests.acceptance.application import app_of_separate_workers as app

__all__ = ["app"]

while Path(os.environ["HOLD"]).exists():
    time.sleep(0.01)
