"""From the events of the journal to the table of outcomes: one row for each operation."""
