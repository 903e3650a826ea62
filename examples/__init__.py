"""Examples: complete applications that use only public names of the package."""
