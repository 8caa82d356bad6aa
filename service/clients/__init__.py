"""Who may use the API: clients, their tokens, scopes, rate limits and commands."""
