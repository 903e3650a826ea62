"""Access control before an endpoint runs: bearer tokens with scopes, cross-site requests.

Not here: what a request may do once it is admitted (`http.authorization`).
"""
