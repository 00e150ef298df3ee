"""What a person sees: terminal, Markdown, CSV, JSON, and all formatting of units. Never computes."""
