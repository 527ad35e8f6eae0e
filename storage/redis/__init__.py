"""Redis: copies and buffers, never the truth."""
