"""What an attempt writes: recorder, agent log, output."""
