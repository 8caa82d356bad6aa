"""All that speaks HTTP."""
