"""Who may do what: bearer tokens and their scopes, cross-site requests."""
