"""A shop: an order is cancelled after 15 minutes unless it is paid, and its page is updated.

It has two kinds of wait. `PaymentDeadline` is an operation that ends with the payment or at its
deadline. The page is a GET that gets its response when the order changes or the wait ends.
"""
