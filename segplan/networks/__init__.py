"""Which networks exist, how each is built, which patches it accepts."""
