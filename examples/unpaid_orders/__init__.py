"""A shop: an order is cancelled after 15 minutes unless it is paid, and its buyer's page knows.

Two waits of the same kind. `PaymentDeadline` is an operation that a payment completes, or its
deadline; and the page is a GET that is answered when its order changes, or when its wait is over.
"""
