"""What to buy: the cheapest plan that meets the deadlines, the fastest for a budget; pure."""
