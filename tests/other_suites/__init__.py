"""Other projects' test suites, run with a purgatory installed in each of their applications.

`python -m tests.other_suites FOLDER` runs the suite of a checkout twice, with and without
`purgatory_everywhere`, or `parking_protocol_everywhere`, and lists what fails only with it.
"""
