"""What runs inside the user's training lies under `path/`: recorder, hooks and Conv2d; it imports nothing of ours."""
