"""SQLite: every measurement, written as it is made."""
