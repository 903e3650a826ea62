"""The service: Purgatory as a process of its own.

Here belong the settings from the environment, the composition of the application, its log and its
command line. Everything that another application could use is in the package `purgatory`.
"""
