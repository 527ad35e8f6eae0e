"""Graph backends behind one port: in process and PostgreSQL."""
