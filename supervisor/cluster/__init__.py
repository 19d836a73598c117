"""One training on several nodes: the link between them, the leader, the node's side, and the ranks that run on it."""
