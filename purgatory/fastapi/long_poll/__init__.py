"""The middleware that makes a long poll of any GET with an ETag.

Here: parking, repeated calls of the endpoint, and how an endpoint names its keys. Not here: the
endpoint `/watch`, which has signals for a result, and `ParkDep`, which parks within one call.
"""
