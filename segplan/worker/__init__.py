"""Child processes: a JSON request in, a JSON result out, an answer even on abort or time-out."""
