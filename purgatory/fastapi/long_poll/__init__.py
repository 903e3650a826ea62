"""Any GET with an ETag as a long poll: the middleware, and how endpoints name their keys."""
