"""The endpoints that park a request until a key fires: parameters, waits, responses."""
