"""Jobs that are HTTP requests to another service: addresses, requests, signatures.

The only room that makes HTTP requests.
"""
