"""What is known of one attempt, by part: reports of its agent, plan, saves, kernel log, and time not observed."""
