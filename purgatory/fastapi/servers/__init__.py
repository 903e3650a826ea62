"""Code that leans on the internals of a server or framework: uvicorn's protocol class, drain."""
