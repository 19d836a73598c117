"""Commands about several nodes, which read and write the fleet's database."""
