"""Stores of tiered memory behind the port `isotherm.pipeline.tier.store.Store`, all held to one suite of tests."""
