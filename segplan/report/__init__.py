"""What a person sees, and all formatting of units. Never computes."""
