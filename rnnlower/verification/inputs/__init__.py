"""The inputs of a verification: shapes, values, trials, and inputs given by the user."""
