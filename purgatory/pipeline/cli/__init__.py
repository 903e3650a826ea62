"""The command line of the pipeline: commands, options, and how results are printed."""
