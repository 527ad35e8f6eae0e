"""Rules of the knowledge base: objects, kinds, filters, index text, fusion, promotion and expansion."""
