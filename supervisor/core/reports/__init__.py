"""What status and account show, computed from the record's facts."""
