"""Bodies of requests: reading, JSON, schemas.

Not here: the models of each endpoint's body, which are in the `schemas` of its folder, the bodies
of responses (`raw_response`), and the bounds on what is incomplete (`bounds`).
"""
