"""`make docs-house`: draw the house anew in docs/architecture.md."""

from tests.house.picture import PAGE, redrawn

PAGE.write_text(redrawn(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
