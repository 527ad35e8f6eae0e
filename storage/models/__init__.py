"""Models behind the ports: OpenAI-compatible servers over HTTP, and models that run on this machine without a network."""
