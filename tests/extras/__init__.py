"""`make test-extras`: each extra of the wheel alone, in an empty environment."""
