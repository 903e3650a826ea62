"""Callbacks: jobs that are HTTP requests to another service. Addresses, requests, signatures.

The only room that sends HTTP requests. Not here: retries and their delays (`jobs.worker`).
"""
