"""What runs in the training (`path/`: recorder, hooks, Conv2d), and the prover. It imports nothing of ours."""
