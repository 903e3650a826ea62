"""Jobs while everything around them dies: `make chaos`, and a short form in the suite."""
