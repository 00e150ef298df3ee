"""From a tape to seconds on a card."""
