"""What a verification feeds: shapes, values, trials, and what the user gives."""
