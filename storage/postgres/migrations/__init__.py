"""Numbered SQL migrations, applied in order under an advisory lock."""
