"""All that speaks PostgreSQL."""
