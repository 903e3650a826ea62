"""The endpoints of keys: fire, describe, drop, list."""
