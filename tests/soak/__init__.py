"""Long attacks that are no part of the default tests: `make soak`, or `python -m tests.soak --help`."""
