"""Adapters for the ports. SQL lives only here."""
