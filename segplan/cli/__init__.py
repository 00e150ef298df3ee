"""The command line: one file a command. Parse, call one function of `api/`, hand the result to `report/`."""
