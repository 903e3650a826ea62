"""Another distribution, `purgatory` (a circuit breaker), that installs into the same folder."""

import warnings
from pathlib import Path
from typing import Final

_FOLDER: Final = Path(__file__).parent
# Files of the other one, in all of its versions, and of none of ours.
_OTHERS: Final = ("service/_async", "service/_sync", "domain/messages")


def warn_of_another_distribution(folder: Path = _FOLDER) -> None:
    """Warn if files of the other distribution are in the folder of this package.

    Each has overwritten files of the other, so one of the two does not work.
    """
    if any((folder / name).exists() for name in _OTHERS):
        warnings.warn(
            "fastapi-purgatory and the circuit breaker purgatory are both installed, and share the "
            "import name: run `pip uninstall purgatory fastapi-purgatory`, then install only one",
            RuntimeWarning,
            stacklevel=3,
        )
