"""Processes that are killed while they commit jobs and fires with changes of their own."""
