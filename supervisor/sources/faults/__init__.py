"""Tables of fault wordings and what they find in a text."""
