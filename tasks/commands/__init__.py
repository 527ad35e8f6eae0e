"""Commands of the `isotherm` command line, one module per family."""
