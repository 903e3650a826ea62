"""Mutation testing: faults that the tests of a room ought to notice, by Cosmic Ray."""
