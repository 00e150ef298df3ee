"""The command line: parse, call one function of `api/`, hand the result to `report/`."""
