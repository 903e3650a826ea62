"""Bodies of requests: reading, the deadline and byte budget of what is incomplete, JSON, schemas.

Not here: the models of each endpoint's body, which are in the `schemas` of its folder, and the
bodies of responses (`raw_response`), except for the byte budget of what a client has not read.
"""
