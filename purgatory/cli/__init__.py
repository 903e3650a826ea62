"""The command `purgatory`: the service, its jobs and its stores, from a terminal.

Each module has one group of commands; `application` joins them. What a command does is done by
`purgatory.client` or by a store: here are its options, its output and its exit status. Modules
behind an extra are imported by the commands that need them.
"""
