"""Pure values and rules: no files, no driver, no clock, no chance."""
