"""Floor 4: how fast the core is on this machine, beside what people use otherwise.

    python -m purgatory bench            # under a minute
    python -m purgatory bench --full     # some minutes; says how many

A *row* compares two *contenders* in one *measure*. The contenders of a *stage* are processes of
their own, so that neither the memory nor the collector of one weighs on another, and take turns,
so that a busy machine is busy for all of them.
"""
