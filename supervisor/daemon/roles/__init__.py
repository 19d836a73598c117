"""The daemon as a part of a training on several nodes: of one node, or the leader of all."""
