"""Examples: applications of their own, on public names only."""
