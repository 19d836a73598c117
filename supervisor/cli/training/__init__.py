"""`supervisorctl training`: a training on several nodes, from its folder."""
