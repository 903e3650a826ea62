"""The journal as it grows: streaming queries by window, and alerts."""
