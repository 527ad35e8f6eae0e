"""Sample conversations that come with the package."""
