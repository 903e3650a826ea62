"""Tables of waits: counts, durations, lateness and concurrency, by kind, hour and key.

They are small, whatever the number of outcomes they are computed from; what follows from them is in
`advise`.
"""
